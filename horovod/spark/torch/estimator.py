"""The estimator for PyTorch, and the model that it makes. On the driver; trainer.py is the ranks' part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from horovod.spark.common.estimator import HorovodEstimator, HorovodModel
from horovod.spark.common.params import check_type, with_params
from horovod.spark.torch import _trainer

_PARAMS = {
    "input_shapes": (None, "a shape [-1, ...] for each input of the model"),
    "loss_constructors": (None, "instead of loss: functions that make the losses on the ranks"),
    "train_minibatch_fn": (None, "one step, instead of the usual one"),
    "backward_passes_per_step": (1, "steps between two updates of the weights"),
}


@with_params(_PARAMS)
class TorchEstimator(HorovodEstimator):
    """Trains `model` (torch.nn.Module) with `optimizer` (of the model's parameters) to a small `loss(output, label)`.

    The model is called with one tensor for each of `feature_cols`, and returns one tensor for each of `label_cols` (one
    tensor, or a tuple). `metrics`: functions (outputs, labels) -> number, averaged over rows and ranks; a list or a dict.
    `train_minibatch_fn(model, optimizer, transform_outputs, loss_fns, inputs, labels, sample_weights)` makes one step and
    returns (outputs, loss). A run that is in the store continues after its last epoch.
    """

    def _also_required(self) -> tuple[str, ...]:
        if self.value("loss") is not None and self.value("loss_constructors") is not None:
            raise ValueError("loss and loss_constructors were both given: give one of them")
        return ("optimizer", "loss" if self.value("loss_constructors") is None else "loss_constructors")

    def _check_kinds(self) -> None:
        name = type(self).__name__
        check_type(name, "model", self.value("model"), torch.nn.Module, "a torch.nn.Module")
        wanted = "a torch.optim.Optimizer of the model's parameters"
        check_type(name, "optimizer", self.value("optimizer"), torch.optim.Optimizer, wanted)
        own = {id(parameter) for parameter in self.value("model").parameters()}
        groups = self.value("optimizer").param_groups
        if not all(id(parameter) in own for group in groups for parameter in group["params"]):
            raise ValueError(
                f"{name}: the optimizer has parameters that are not the model's. Make it of model.parameters(), after "
                "the last change of the model."
            )

    def _remote(self, data: Any, run_id: str) -> tuple[Callable[[Any], Any], Any]:
        task = self._task(data, run_id)
        task |= self._values("input_shapes loss_constructors train_minibatch_fn backward_passes_per_step")
        task["model"] = _trainer.saved((self.value("model"), self.value("optimizer")))
        return _trainer.train, task

    def _model(self, result: Any, run_id: str) -> TorchModel:
        weights, history = result
        model = _trainer.loaded(_trainer.saved(self.value("model")))
        model.load_state_dict(_trainer.loaded(weights))
        return TorchModel(**self._of_model(model, history, run_id), input_shapes=self.value("input_shapes"))


@with_params({"input_shapes": (None, "a shape [-1, ...] for each input of the model")})
class TorchModel(HorovodModel):
    """A PyTorch model that adds its outputs to a Spark frame. `getModel()` is the torch.nn.Module."""

    def _make_predictor(self) -> Callable[[], Callable[[Any], list[Any]]]:
        model, inputs = _trainer.saved(self.value("model")), self.value("feature_columns")
        shapes = self.value("input_shapes") or [None] * len(inputs)
        return lambda: _trainer.predictor(model, inputs, shapes)
