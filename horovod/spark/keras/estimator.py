"""The estimator for Keras 3, and the model that it makes. On the driver; trainer.py is the ranks' part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from horovod.spark.common.estimator import HorovodEstimator, HorovodModel
from horovod.spark.common.params import check_type, with_params
from horovod.spark.keras import _trainer

_PARAMS = {
    "custom_objects": (None, "the classes and functions that the model is made of, by name"),
    "checkpoint_callback": (None, "a callback that rank 0 has besides the checkpoints of the estimator"),
    "tensorflow_dataset_prefetch_buffer_size": (0, "of petastorm: accepted"),
}


@with_params(_PARAMS)
class KerasEstimator(HorovodEstimator):
    """Trains `model` (keras.Model) with `optimizer` and `loss`; without them, with those that it was compiled with.

    One input for each of `feature_cols`, one output for each of `label_cols`. `optimizer`, `loss`, `metrics` and
    `callbacks` are those of Keras. A run that is in the store continues after its last epoch.
    """

    def _also_required(self) -> tuple[str, ...]:
        compiled = self.value("model") is not None and getattr(self.value("model"), "compiled", False)
        return () if compiled else ("optimizer", "loss")

    def _check_kinds(self) -> None:
        name = type(self).__name__
        check_type(name, "model", self.value("model"), keras.Model, "a keras.Model")
        optimizers = (str, keras.optimizers.Optimizer)
        check_type(
            name, "optimizer", self.value("optimizer"), optimizers, "a keras.optimizers.Optimizer or a name"
        )

    def _remote(self, data: Any, run_id: str) -> tuple[Callable[[Any], Any], Any]:
        task, model = self._task(data, run_id), self.value("model")
        task |= self._values("custom_objects checkpoint_callback")
        optimizer = self.value("optimizer")
        if optimizer is None:
            optimizer = model.optimizer
            task["loss"] = task["loss"] or model.loss
        if not isinstance(optimizer, str):
            optimizer = keras.optimizers.serialize(optimizer)
        task["optimizer"] = optimizer
        task["model"] = _trainer.saved(model)
        return _trainer.train, task

    def _model(self, result: Any, run_id: str) -> KerasModel:
        data, history = result
        custom = self.value("custom_objects")
        model = _trainer.loaded(data, custom)
        return KerasModel(**self._of_model(model, history, run_id), custom_objects=custom)


@with_params({"custom_objects": _PARAMS["custom_objects"]})
class KerasModel(HorovodModel):
    """A Keras model that adds its outputs to a Spark frame. `getModel()` is the keras.Model."""

    def _make_predictor(self) -> Callable[[], Callable[[Any], list[Any]]]:
        model, custom = _trainer.saved(self.value("model")), self.value("custom_objects")
        inputs = self.value("feature_columns")
        return lambda: _trainer.predictor(model, custom, inputs)
