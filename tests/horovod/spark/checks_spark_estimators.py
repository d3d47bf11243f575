"""Checks of the estimators on real frames, with ranks in the executors of a Spark session. Called by spark_driver.py."""

import tempfile
import warnings

import numpy as np
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions

from checks_spark_data import raised
from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.store import Store

WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0])


def rows(spark, count=600):
    """A frame whose label is a linear function of its features: a vector, two numbers, and a column of neither."""
    random = np.random.RandomState(0)
    values = random.uniform(-1, 1, (count, 4))
    made = [
        (Vectors.dense(x), float(x[0]), float(x @ WEIGHTS), f"row {i}", bool(i % 5 == 0))
        for i, x in enumerate(values)
    ]
    return spark.createDataFrame(made, ["features", "first", "y", "name", "is_val"])


def folder():
    return Store.create(tempfile.mkdtemp(prefix="store-"))


def torch_estimator(**options):
    import torch

    from horovod.spark.torch import TorchEstimator

    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    settings = {
        "num_proc": 2,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5),
        "loss": torch.nn.MSELoss(),
        "feature_cols": ["features"],
        "label_cols": ["y"],
        "label_shapes": [[-1, 1]],
        "input_shapes": [[-1, 4]],
        "batch_size": 16,
        "epochs": 3,
        "validation": 0.2,
        "random_seed": 3,
        "partitions_per_process": 2,
        "verbose": 0,
    }
    return TorchEstimator(**{**settings, **options})


def check_torch_estimator(spark):
    def error(outputs, labels):
        return (outputs - labels).abs().mean()

    frame, store = rows(spark), folder()
    model = torch_estimator(store=store, metrics={"error": error}).fit(frame)
    history = model.getHistory()
    assert [told["epoch"] for told in history] == [0, 1, 2]
    losses = [told["validation"]["loss"] for told in history]
    assert losses[2] < 0.3 * losses[0] and set(history[0]["train"]) == {"loss", "error"}, history
    # The data that was written is gone, and the checkpoint is there.
    files, place = store.filesystem(store.prefix_path)
    assert [name.rpartition("/")[2] for name in files.ls(place, detail=False)] == ["runs"]
    done = model.transform(frame)
    assert done.columns == [*frame.columns, "y__output"] and dict(done.dtypes)["features"] == "vector"
    found = done.select(vector_to_array("features"), "y__output").collect()
    module = model.getModel()
    weight, bias = module.weight.detach().numpy()[0], float(module.bias.detach())
    assert len(found) == 600
    for x, y in found:
        assert abs(float(np.dot(x, weight)) + bias - y) < 1e-4
    assert abs(weight - WEIGHTS).max() < 0.5, weight


def check_torch_run_goes_on_after_a_failure(spark):
    frame, store = rows(spark), folder()

    def step(model, optimizer, transform_outputs, losses, inputs, labels, weights):
        optimizer.zero_grad()
        outputs = model(*inputs)
        loss = losses[0](outputs, labels[0])
        loss.backward()
        optimizer.step()
        step.count = getattr(step, "count", 0) + 1
        if step.count == 40:
            raise ValueError("the machine is on fire")
        return outputs, loss

    estimator = torch_estimator(
        store=store, run_id="mine", epochs=6, validation="is_val", train_minibatch_fn=step
    )
    text = raised(RuntimeError, estimator.fit, frame)
    assert "ValueError: the machine is on fire" in text and "rank " in text.splitlines()[0], text
    model = torch_estimator(store=store, run_id="mine", epochs=6, validation="is_val").fit(frame)
    assert [told["epoch"] for told in model.getHistory()] == [0, 1, 2, 3, 4, 5]
    further = torch_estimator(store=store, run_id="mine", epochs=1, validation="is_val").fit(frame)
    assert [told["epoch"] for told in further.getHistory()] == [0, 1, 2, 3, 4, 5, 6]
    assert further.getHistory()[6]["validation"]["loss"] < model.getHistory()[0]["validation"]["loss"]


def keras_estimator(**options):
    import keras

    from horovod.spark.keras import KerasEstimator

    keras.utils.set_random_seed(1)
    one, two = keras.Input((4,)), keras.Input((1,))
    out = keras.layers.Dense(1)(keras.layers.Concatenate()([one, two]))
    settings = {
        "num_proc": 2,
        "model": keras.Model([one, two], out),
        "optimizer": keras.optimizers.SGD(0.2, momentum=0.5),
        "loss": "mse",
        "metrics": ["mae"],
        "feature_cols": ["features", "first"],
        "label_cols": ["y"],
        "batch_size": 16,
        "epochs": 3,
        "validation": 0.2,
        "random_seed": 3,
        "partitions_per_process": 2,
        "verbose": 0,
    }
    return KerasEstimator(**{**settings, **options})


def check_keras_estimator(spark):
    frame, store = rows(spark), folder()
    model = keras_estimator(store=store, run_id="mine", epochs=2).fit(frame)
    first = model.getHistory()
    assert len(first["val_loss"]) == 2 and first["val_loss"][1] < first["val_loss"][0], first
    # The run goes on: weights, optimizer and history.
    model = keras_estimator(store=store, run_id="mine", epochs=2).fit(frame)
    history = model.getHistory()
    assert history["val_loss"][:2] == first["val_loss"] and len(history["val_mae"]) == 4, history
    assert history["val_loss"][3] < 0.3 * history["val_loss"][0], history
    done = model.transform(frame).select("name", vector_to_array("features"), "first", "y__output").collect()
    kernel, bias = [value.numpy() for value in model.getModel().layers[-1].weights]
    for _, x, first, y in done:
        assert abs(float(np.dot([*x, first], kernel[:, 0]) + bias[0]) - y) < 1e-3
    assert len({name for name, *_ in done}) == 600


def check_fit_on_parquet(spark):
    frame, store = rows(spark, 200), folder()
    plain = frame.select(vector_to_array("features").alias("features"), "y")
    plain.repartition(4).write.parquet(store.get_train_data_path())
    assert store.is_parquet_dataset(store.get_train_data_path())
    assert store.get_parquet_dataset(store.get_train_data_path()).count_rows() == 200
    model = torch_estimator(store=store, epochs=1, validation=None).fit_on_parquet()
    assert "validation" not in model.getHistory()[0]
    assert store.exists(store.get_train_data_path())


def check_mistakes_are_told_before_a_job_starts(spark):
    frame, store = rows(spark, 20), folder()
    text = raised(ValueError, torch_estimator(store=store, loss=None).fit, frame)
    assert "needs loss" in text, text
    text = raised(ValueError, torch_estimator(store=store, loss_constructors=[lambda: None]).fit, frame)
    assert "loss and loss_constructors" in text, text
    text = raised(ValueError, torch_estimator(store=store, backend=SparkBackend(2)).fit, frame)
    assert "backend and num_proc" in text, text
    text = raised(ValueError, torch_estimator(store=store, label_cols=["z"]).fit, frame)
    assert "no column z" in text, text
    text = raised(ValueError, torch_estimator(store=store, validation=1.5).fit, frame)
    assert "between 0 and 1" in text, text
    text = raised(ValueError, torch_estimator(store=store, num_proc=64).fit, frame)
    assert "not enough for 64 processes" in text, text
    assert "no parameter epoch" in raised(TypeError, torch_estimator, epoch=3)
    for name, wrong, told in (
        ("batch_size", 0, "an integer of at least 1"),
        ("epochs", 1.5, "an integer of at least 1"),
        ("feature_cols", "features", "a list of names of columns"),
        ("feature_cols", ["y"], "is in feature_cols and in label_cols"),
        ("label_shapes", [[-1, 1], [-1, 2]], "one shape for each of label_cols"),
        ("loss_weights", [1.0, 2.0], "one for each of the 1 label_cols"),
        ("validation", ["a"], "a fraction between 0 and 1"),
        ("store", "/a/folder", "an object with the methods get_train_data_path"),
        ("train_minibatch_fn", 3, "a function"),
        ("model", "linear", "a torch.nn.Module"),
        ("optimizer", "sgd", "a torch.optim.Optimizer"),
    ):
        text = raised(ValueError, torch_estimator(**{"store": store, name: wrong}).fit, frame)
        assert told in text, text
    import torch

    text = raised(ValueError, torch_estimator(store=store, model=torch.nn.Linear(4, 1)).fit, frame)
    assert "parameters that are not the model's" in text, text
    text = raised(ValueError, keras_estimator(store=store, model=torch.nn.Linear(4, 1)).fit, frame)
    assert "a keras.Model" in text, text
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"reader_pool_type": "process", "train_reader_num_workers": 8, "label_cols": ["z"]}
        raised(ValueError, torch_estimator(store=store, **options).fit, frame)
    petastorm = [str(w.message) for w in caught if "petastorm" in str(w.message)]
    assert len(petastorm) == 1 and "train_reader_num_workers, reader_pool_type" in petastorm[0], petastorm


def check_parameters_have_setters_and_getters(spark):
    estimator = torch_estimator(store=folder()).setNumProc(4).setEpochs(7).setFeatureCols(["a"])
    assert (estimator.getNumProc(), estimator.getEpochs(), estimator.getFeatureCols()) == (4, 7, ["a"])
    assert estimator.setTrainReaderNumWorker(3).getTrainReaderNumWorkers() == 3
    assert estimator.getBatchSize() == 16 and estimator.getShuffle() and estimator.getVerbose() == 0
    other = estimator.copy({estimator.epochs: 9})
    assert (other.getEpochs(), estimator.getEpochs()) == (9, 7)


def check_the_estimator_is_a_stage_of_a_pipeline(spark):
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import VectorAssembler

    frame = rows(spark, 100).withColumn("second", functions.col("first") * 2)
    assembler = VectorAssembler(inputCols=["first", "second"], outputCol="both")
    import torch

    model = torch.nn.Linear(2, 1)
    estimator = torch_estimator(
        store=folder(),
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        feature_cols=["both"],
        input_shapes=[[-1, 2]],
        epochs=1,
        validation=None,
        num_proc=1,
    )
    done = Pipeline(stages=[assembler, estimator]).fit(frame).transform(frame)
    assert done.select("y__output").count() == 100


def check_a_keras_program_of_databricks(spark):
    """A function with its imports inside, as Databricks' pages show it; LogCallback tells the driver."""
    import contextlib
    import io

    from sparkdl import HorovodRunner

    def train(epochs):
        import numpy as np
        from sparkdl.horovod.tensorflow.keras import LogCallback
        from tensorflow import keras

        import horovod.tensorflow.keras as hvd

        hvd.init()
        random = np.random.RandomState(hvd.rank())
        x = random.rand(128, 8, 8, 1).astype("float32")
        y = (x[:, :4].sum((1, 2, 3)) > x[:, 4:].sum((1, 2, 3))).astype("int64")
        model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * hvd.size()))
        model.compile(
            optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), LogCallback()]
        model.fit(x, y, batch_size=32, epochs=epochs, verbose=0, callbacks=callbacks)
        return float(model.evaluate(x, y, verbose=0)[1])

    with contextlib.redirect_stdout(io.StringIO()) as out:
        accuracy = HorovodRunner(np=2).run(train, epochs=2)
    assert 0.0 < accuracy <= 1.0
    lines = out.getvalue().splitlines()
    assert lines[0] == "Epoch 1 begins." and lines[1].startswith("Epoch 1 ends: accuracy = "), lines
    assert len(lines) == 4, lines
