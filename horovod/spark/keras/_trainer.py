"""Trains a Keras model on one rank of an estimator's job, and predicts with it in executors. Needs no PySpark."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from horovod.common.objects import broadcast_object
from horovod.spark.common._data import RankData, columns_of, flat, shaped


def saved(model: Any) -> bytes:
    """The model as Keras saves it, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def loaded(data: bytes, custom_objects: dict[str, Any] | None, compiled: bool = False) -> Any:
    """The inverse of saved(). `compiled`: with its optimizer."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        with open(path, "wb") as file:
            file.write(data)
        return keras.models.load_model(path, custom_objects=custom_objects, compile=compiled)


def predictor(
    model: bytes, custom_objects: dict[str, Any] | None, inputs: Sequence[str]
) -> Callable[[Any], list[np.ndarray]]:
    """A function (pandas frame -> one float32 array for each output of the model)."""
    ready = loaded(model, custom_objects)

    def predict(frame: Any) -> list[np.ndarray]:
        arrays = shaped(columns_of(frame, inputs), input_shapes(ready))
        outputs = ready.predict_on_batch(arrays[0] if len(arrays) == 1 else arrays)
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        return [flat(np.asarray(output)) for output in outputs]

    return predict


def input_shapes(model: Any) -> list[list[int] | None]:
    """[-1, ...] for each input of the model; None where a length is not fixed."""
    shapes = [tuple(tensor.shape)[1:] for tensor in model.inputs]
    return [None if None in shape else [-1, *shape] for shape in shapes]


class _Checkpoints(keras.callbacks.Callback):
    """Writes the model into the store after each epoch, on rank 0, with the history beside it."""

    def __init__(self, task: dict[str, Any], history: dict[str, list[float]]) -> None:
        super().__init__()
        self._task, self._history = task, history

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name, value in (logs or {}).items():
            self._history.setdefault(name, []).append(float(value))
        store = self._task["store"]
        if store.saving_runs():
            path = store.get_checkpoint_path(self._task["run_id"])
            store.write(path, saved(self.model))
            about = {"epoch": epoch, "last_epoch": self._task["last_epoch"], "history": self._history}
            store.write_text(f"{path}.json", json.dumps(about))


def train(task: dict[str, Any]) -> tuple[bytes, dict[str, list[float]]] | None:
    """The function of the ranks: (the model, the history) on rank 0."""
    import horovod.keras as hvd

    hvd.init()
    _choose_device(hvd, task)
    model, history, first = _restored(hvd, task)
    data = RankData(task, hvd.rank(), hvd.size())
    data.train.epoch = first
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    callbacks += list(task["callbacks"] or [])
    if hvd.rank() == 0:
        callbacks += [task["checkpoint_callback"]] if task["checkpoint_callback"] is not None else []
        callbacks.append(_Checkpoints(task, history))
    shapes = input_shapes(model)
    validation = {}
    if data.val is not None:
        batches = _batches(data, data.val, shapes)
        validation = {"validation_data": batches, "validation_steps": data.val_steps}
    model.fit(
        _batches(data, data.train, shapes),
        steps_per_epoch=data.train_steps,
        initial_epoch=first,
        epochs=task["last_epoch"],
        shuffle=False,  # the shards are
        verbose=2 if task["verbose"] and hvd.rank() == 0 else 0,
        callbacks=callbacks,
        **validation,
    )
    return (saved(model), history) if hvd.rank() == 0 else None


def _restored(hvd: Any, task: dict[str, Any]) -> tuple[Any, dict[str, list[float]], int]:
    """(the compiled model, the history, the next epoch). Sets task["last_epoch"]."""
    store, custom = task["store"], task["custom_objects"]
    path = store.get_checkpoint_path(task["run_id"])
    resumed = None
    if hvd.rank() == 0 and store.saving_runs() and store.exists(f"{path}.json"):
        resumed = (json.loads(store.read(f"{path}.json")), store.read(path))
    about, data = broadcast_object(resumed, 0, name="horovod.spark.resume") or (None, None)
    model = loaded(data or task["model"], custom)
    optimizer = task["optimizer"]
    if not isinstance(optimizer, str):
        optimizer = keras.optimizers.deserialize(optimizer, custom_objects=custom)
    optimizer = keras.optimizers.get(optimizer)
    if data is not None:
        optimizer = _with_state(optimizer, loaded(data, custom, compiled=True), model)
    compression = {"compression": task["gradient_compression"]} if task["gradient_compression"] else {}
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer, **compression),
        loss=task["loss"],
        loss_weights=task["loss_weights"],
        metrics=task["metrics"] or None,
    )
    first = 0 if about is None else about["epoch"] + 1
    task["last_epoch"] = first + task["epochs"]
    if about is not None and first < about["last_epoch"]:
        task["last_epoch"] = about["last_epoch"]  # it was interrupted, and ends where it was to end
    return model, {} if about is None else about["history"], first


def _with_state(optimizer: Any, before: Any, model: Any) -> Any:
    """The optimizer with the variables of the one that the model was saved with, if they are of the same kind."""
    state = getattr(before, "optimizer", None)
    if state is None:
        return optimizer
    optimizer.build(model.trainable_variables)
    if [tuple(v.shape) for v in optimizer.variables] == [tuple(v.shape) for v in state.variables]:
        for mine, theirs in zip(optimizer.variables, state.variables):
            mine.assign(theirs)
    return optimizer


def _batches(data: RankData, shard: Any, shapes: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    for features, labels, weights in data.batches(shard, shapes):
        inputs = features[0] if len(features) == 1 else tuple(features)
        wanted = labels[0] if len(labels) == 1 else tuple(labels)
        yield (inputs, wanted) if weights is None else (inputs, wanted, weights)


def _choose_device(hvd: Any, task: dict[str, Any]) -> None:
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not task["use_gpu"]:
        tf.config.set_visible_devices([], "GPU")
    elif gpus:
        gpu = gpus[hvd.local_rank() % len(gpus)]
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
