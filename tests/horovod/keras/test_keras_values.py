"""Operations on values, of saved models, and of the modules that are loaded and the names that are exported."""

import inspect
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from keras_support import (
    KERAS3,
    KIND,
    TORCH,
    agree,
    data_of,
    hvd,
    joined,
    keras,
    layer_of,
    numpy_of,
    on,
    raises,
    same_everywhere,
    saved,
    sgd,
    train_together,
    weights_of,
)

pytestmark = [on("torch", 2), on("tf.keras", 2)]

optimizers = keras.optimizers


def test_allreduce():
    size, rank = hvd.size(), hvd.rank()
    ranks = np.arange(size)
    value = np.array([[1.0, 2.0], [3.0, rank + 0.5]])
    mean = np.array([[1.0, 2.0], [3.0, ranks.mean() + 0.5]])
    np.testing.assert_allclose(numpy_of(hvd.allreduce(value, "mean")), mean, rtol=1e-6)
    np.testing.assert_allclose(numpy_of(hvd.allreduce(value, average=True)), mean, rtol=1e-6)
    np.testing.assert_allclose(numpy_of(hvd.allreduce(value, average=False)), mean * size, rtol=1e-6)
    np.testing.assert_allclose(numpy_of(hvd.allreduce(value, op=hvd.Sum)), mean * size, rtol=1e-6)
    np.testing.assert_allclose(numpy_of(hvd.allreduce(value, op=hvd.Max))[1, 1], size - 0.5)
    scaled = hvd.allreduce(value, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25)
    np.testing.assert_allclose(numpy_of(scaled), mean * size * 0.5, rtol=1e-6)
    half = hvd.allreduce(value, compression=hvd.Compression.fp16)
    np.testing.assert_allclose(numpy_of(half), mean, rtol=1e-3)
    assert numpy_of(half).dtype == np.float64
    assert float(hvd.allreduce(rank + 0.0)) == ranks.mean()
    with raises(ValueError, "Please provide only one"):
        hvd.allreduce(value, average=True, op=hvd.Sum)


def test_what_values_may_be():
    rank, size = hvd.rank(), hvd.size()
    array = np.full((2, 3), rank + 1.0, np.float32)
    tensor = keras.ops.convert_to_tensor(array) if KERAS3 else __import__("tensorflow").constant(array)
    variable = keras.Variable(array) if KERAS3 else __import__("tensorflow").Variable(array)
    for value in (array, tensor, variable, array.tolist()):
        result = hvd.allreduce(value, op=hvd.Sum)
        assert type(result) is type(hvd.broadcast(tensor, 0)), type(result)
        np.testing.assert_array_equal(numpy_of(result), np.full((2, 3), size * (size + 1) / 2))


def test_the_other_operations():
    rank, size = hvd.rank(), hvd.size()
    rows = numpy_of(hvd.allgather(np.full((rank + 1, 2), rank, np.int64), "rows"))
    np.testing.assert_array_equal(rows, np.repeat(np.arange(size), np.arange(size) + 1)[:, None] * [1, 1])
    root = size - 1
    np.testing.assert_array_equal(numpy_of(hvd.broadcast(np.array([rank, 7]), root)), [root, 7])
    np.testing.assert_array_equal(numpy_of(hvd.broadcast(np.array([rank, 7]), root, name="b")), [root, 7])
    part = numpy_of(hvd.reducescatter(np.arange(size * 2.0) + rank))
    np.testing.assert_allclose(part, np.arange(size * 2.0)[2 * rank : 2 * rank + 2] + (size - 1) / 2)
    part = numpy_of(hvd.reducescatter(np.arange(size * 2.0), "rs", hvd.Sum))
    np.testing.assert_allclose(part, np.arange(size * 2.0)[2 * rank : 2 * rank + 2] * size)


class Unreadable:
    """Its attributes raise."""

    def __getattr__(self, name):
        raise RuntimeError("this object cannot be read")


def test_a_value_that_cannot_be_sent():
    # The rank whose call fails tells the other ranks, which would otherwise wait for it.
    last = hvd.rank() == hvd.size() - 1
    for name in ("mistake", None):
        for operation in (
            lambda value: hvd.allreduce(value, name),
            lambda value: hvd.allgather(value, name),
            lambda value: hvd.broadcast(value, 0, name),
            lambda value: hvd.reducescatter(value, name),
        ):
            for value in (object(), Unreadable()):
                with raises(Exception, "object"):
                    operation(value if last else np.ones(3))
    same_everywhere(hvd.allreduce(np.ones(3)))


def test_global_variables_belong_to_graphs():
    with raises(RuntimeError, "BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)


def formats():
    return ["keras", "h5"] if KERAS3 else ["keras", "h5", "saved_model"]


def test_loaded_models_train_on():
    for form in formats():
        # (Keras 3 does not read its own .h5 files with the loss given as "mse".)
        optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.9))
        model = train_together(optimizer, loss=keras.losses.MeanSquaredError())
        with TemporaryDirectory() as folder:
            path = saved(model, folder, form)
            again = hvd.load_model(path)
            assert type(again.optimizer).__module__ == "horovod._keras", type(again.optimizer)
            assert type(again.optimizer).__name__ == "SGD"
            np.testing.assert_array_equal(weights_of(again), weights_of(model))
            plain = keras.models.load_model(path)  # without Horovod, for one process
            # Keras 2 does not read the state of an optimizer from a SavedModel, nor Keras 3 from an .h5 file.
            source = plain if form == "saved_model" else model
            kept = [numpy_of(v) for v in list(source.optimizer.variables)]
            found = [numpy_of(v) for v in list(again.optimizer.variables)]
            for a, b in zip(found, kept, strict=True):
                np.testing.assert_array_equal(a, b)
            assert type(plain.optimizer).__module__ != "horovod._keras"
        x, y = data_of(hvd.rank(), 1)
        again.train_on_batch(x, y)
        if KERAS3 and form == "h5":
            continue  # Keras 3 cannot train a model from an .h5 file; hvd.load_model() repairs it
        plain.train_on_batch(*joined(range(hvd.size()), 1))
        agree(again, plain, 1e-6)


class Sgd2(optimizers.SGD):
    """A custom optimizer."""


def test_loading_optimizers_of_ones_own():
    model = train_together(hvd.DistributedOptimizer(Sgd2(0.1)), layer_of())
    with TemporaryDirectory() as folder:
        path = saved(model, folder, "keras")
        for options in ({"custom_optimizers": [Sgd2]}, {"custom_objects": {"Sgd2": Sgd2}}):
            again = hvd.load_model(path, **options)
            assert type(again.optimizer).__name__ == "Sgd2"
            assert isinstance(again.optimizer, Sgd2)
            assert type(again.optimizer).__module__ == "horovod._keras"
    model = train_together(hvd.DistributedOptimizer(optimizers.Adam(0.01)), layer_of())
    with TemporaryDirectory() as folder:
        again = hvd.load_model(saved(model, folder, "keras"), compression=hvd.Compression.fp16)
        assert again.optimizer._hvd_options.compression is hvd.Compression.fp16
        again.train_on_batch(*data_of(hvd.rank(), 1))
        same_everywhere(weights_of(again))


def test_a_saved_model_does_not_name_us():
    model = train_together(hvd.DistributedOptimizer(optimizers.Adam(0.01)), layer_of())
    with TemporaryDirectory() as folder:
        path = saved(model, folder, "keras")
        with zipfile.ZipFile(path) as archive:
            config = archive.read("config.json").decode()
        assert "horovod" not in config
        optimizer = json.loads(config)["compile_config"]["optimizer"]
        assert optimizer["module"] == "keras.optimizers"
        assert optimizer["class_name"] == "Adam"
        if hvd.rank() == 0:  # a process that cannot import horovod
            program = Path(__file__).with_name("load_without_horovod.py")
            command = [sys.executable, str(program), str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            wanted = numpy_of(model(np.ones((1, 6))).detach() if TORCH else model(np.ones((1, 6)))).sum()
            assert abs(float(done.stdout.split()[-1]) - wanted) < 1e-5
        hvd.allgather(np.zeros(1))  # the other ranks wait for that process


def test_exports():
    for name in hvd.__all__:
        assert hasattr(hvd, name), name
    basics = (
        "init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank "
        "mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built "
        "rocm_built Average Sum Compression allreduce allgather broadcast reducescatter broadcast_global_variables "
        "load_model DistributedOptimizer callbacks"
    )
    assert set(basics.split()) <= set(hvd.__all__)
    assert (hvd.Average, hvd.Sum) == (0, 1)


def test_functions_belong_to_their_module():
    for name in (
        "DistributedOptimizer",
        "PartialDistributedOptimizer",
        "allreduce",
        "allgather",
        "load_model",
    ):
        function = getattr(hvd, name)
        assert (function.__module__, function.__name__) == (hvd.__name__, name), function
        assert function.__doc__ and pickle.loads(pickle.dumps(function)) is function
        assert "keras" not in inspect.signature(function).parameters
        assert "keras" not in function.__annotations__
    cls = hvd.callbacks.MetricAverageCallback
    assert (cls.__module__, pickle.loads(pickle.dumps(cls))) == (f"{hvd.__name__}.callbacks", cls)


def test_arguments_of_the_optimizer_by_place():
    # As in Horovod: the parameters after `op` are in another order for tf.keras.
    after_op = (2, True) if KIND == "tf.keras" else (0, None, 2, True)
    optimizer = hvd.DistributedOptimizer(
        sgd(), None, "", "", hvd.Compression.none, False, 1.0, hvd.Average, *after_op
    )
    options = optimizer._hvd_options
    assert (options.backward_passes_per_step, options.average_aggregated_gradients) == (2, True)
    with raises(TypeError, "no_such"):
        hvd.DistributedOptimizer(sgd(), no_such=1)
