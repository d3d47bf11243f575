"""DistributedTrainer for Gluon: averages the gradients in step() and allreduce_grads()."""

import warnings
from typing import Any

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet._gradients import GradientReducer
from horovod.mxnet._load import mx
from horovod.mxnet.compression import Compression, Compressor
from horovod.mxnet.optimizer import DistributedOptimizer

__all__ = ["DistributedTrainer"]


class DistributedTrainer(mx.gluon.Trainer):
    """A Gluon trainer that averages gradients over all ranks in place of a key-value store.

    Args:
        params: `block.collect_params()`, a dict or a list of parameters, in host memory. All ranks pass the same ones.
        optimizer: the name of an MXNet optimizer, or one of its optimizers.
        optimizer_params: arguments of an optimizer that is given by name.
        compression: hvd.Compression.fp16 sends gradients as float16.
        gradient_predivide_factor: gradients are divided by it before the sum, and multiplied by it afterwards.
        prefix: begins the names of the operations; needed where two trainers work at the same time.
        num_groups: the gradients of a step are reduced in so many groups; 0: each by itself.
        process_set: the ranks that take part.

    Raises:
        ValueError: an argument makes no sense.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer was given a DistributedOptimizer, which would average the gradients a second time. "
                "It uses the optimizer inside.",
                stacklevel=2,
            )
            optimizer = optimizer._optimizer
        self._reducer = GradientReducer(
            "DistributedTrainer", compression, gradient_predivide_factor, num_groups, process_set
        )
        self._prefix = prefix or ""
        super().__init__(params, optimizer, optimizer_params, kvstore=None)

    def _allreduce_grads(self) -> None:
        reduced = [(i, p) for i, p in enumerate(self._params) if p.grad_req != "null"]
        # By the place in the sorted list, which is equal on all ranks; names of Gluon have counters.
        names = [f"{self._prefix}gradient.{i}" for i, _ in reduced]
        self._reducer.reduce(lambda: [_gradient_of(p) for _, p in reduced], names)


def _gradient_of(parameter: Any) -> Any:
    found = parameter.list_grad()
    if len(found) > 1:
        raise ValueError(
            f"Parameter {parameter.name} is on {len(found)} devices ({parameter.list_ctx()}). Horovod has one process "
            "for each device: initialize the model with one context."
        )
    return found[0]
