"""DistributedTrainer for Gluon, and DistributedOptimizer for Module and for loops that call an updater.

Both average the gradients of a step: all are submitted, then waited for. A gradient is submitted when MXNet has computed
it, the last of the model first, as the backward pass makes them in this order: the others are computed meanwhile.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from horovod.common.arguments import Average, check_predivide_factor, check_registered, predivide_factors
from horovod.common.basics import engine
from horovod.common.exceptions import HorovodInternalError
from horovod.common.failed_calls import reported_for_each
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.mxnet._arrays import NDArray, Optimizer, Parameter, Trainer, check, reference
from horovod.mxnet.compression import Compression, Compressor
from hvd_core._frontend.operations import REDUCIBLE, engine_number
from hvd_core._runtime.process_sets import number_of

__all__ = ["DistributedOptimizer", "DistributedTrainer"]


_AVERAGE = engine_number(Average)


class GradientReducer:
    """Averages gradients over the ranks of a process set, in place.

    Args:
        caller: the class that the program uses, for messages.
        compression: a Compressor class.
        gradient_predivide_factor: gradients are divided by it before the sum, and multiplied by it afterwards.
        num_groups: in so many groups the gradients of a step are reduced; 0: each by itself.
        process_set: the ranks that take part.

    Raises:
        ValueError: an argument makes no sense.
    """

    def __init__(
        self,
        caller: str,
        compression: Any,
        gradient_predivide_factor: float,
        num_groups: int,
        process_set: ProcessSet,
    ) -> None:
        check_predivide_factor(gradient_predivide_factor, Average)
        check_registered(process_set, caller)
        if not isinstance(num_groups, int) or num_groups < 0:
            raise ValueError(f"num_groups should be a non-negative integer, not {num_groups!r:.80}.")
        self.compression: Any = compression
        self.num_groups: int = num_groups
        self.process_set: ProcessSet = process_set
        self._factors = predivide_factors(gradient_predivide_factor)

    def reduce(self, gradients: Callable[[], list[NDArray]], names: list[str]) -> None:
        """Replace gradients by their averages.

        Args:
            gradients: returns them. The other ranks receive an error that it raises.
            names: of the gradients.

        Raises:
            ValueError: a gradient is sparse, on a device, or of another type than a float or an integer; or the process
                set is not registered any more. The other ranks' calls fail then.
            MXNetError: the backward pass has failed.
            HorovodInternalError: ranks disagree, or a rank is gone.
        """
        order = list(range(len(names)))[::-1]
        groups = split_list(order, self.num_groups) if self.num_groups else [[index] for index in order]
        groups = [group for group in groups if group]
        prefix = "grouped_allreduce" if self.num_groups else "allreduce"
        left = [names[group[0]] for group in groups]  # the first member names a group
        handles: list[int] = []
        wires: list[tuple[NDArray, NDArray, Any]] = []
        core = engine()
        try:
            with reported_for_each("allreduce", prefix, left, self.process_set):
                number = number_of(self.process_set)
                arrays = gradients()
                for array, name in zip(arrays, names):
                    try:
                        check(array, REDUCIBLE)
                    except ValueError as error:
                        raise ValueError(f"gradient {name}: {error}") from None
                for group in groups:
                    compressed = [(arrays[i], *self.compression.compress(arrays[i])) for i in group]
                    wires += compressed
                    sent = [reference(wire, writes=True) for _, wire, _ in compressed]
                    operand = sent if self.num_groups else sent[0]
                    # From here on the engine reports its own refusals.
                    name = f"{prefix}.{left.pop(0)}"
                    handles.append(core.allreduce(operand, operand, name, _AVERAGE, *self._factors, number))
            core.wait_many(handles)
        finally:
            # The engine keeps the arrays of operations whose handles are released before their end.
            for handle in handles:
                with suppress(HorovodInternalError, ValueError):
                    core.release(handle)
        for gradient, wire, context in wires:
            if wire is not gradient:
                gradient[:] = self.compression.decompress(wire, context)


class DistributedOptimizer(Optimizer):
    """An MXNet optimizer that averages gradients over all ranks, and then updates as the wrapped optimizer does.

    The two share their attributes: a learning rate that is set on one is that of the other. Pass it to
    ``Module.fit(..., kvstore=None, optimizer=...)``. With Gluon use DistributedTrainer.

    Args:
        optimizer: the wrapped optimizer.
        gradient_predivide_factor: gradients are divided by it before the sum, and multiplied by it afterwards.
        num_groups: the gradients that MXNet hands over in one call are reduced in so many groups; 0: each by itself.
        process_set: the ranks that take part. Each of them calls the update of the same indices.

    Raises:
        ValueError: an argument makes no sense.
    """

    # Outside of the attributes, which are the wrapped optimizer's.
    __slots__ = ("_arguments", "_optimizer", "_reducer")

    def __init__(
        self,
        optimizer: Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ValueError(
                f"DistributedOptimizer wraps an mx.optimizer.Optimizer, but found {type(optimizer).__name__}: "
                f"{optimizer!r:.80}. Make one with mx.optimizer.create()."
            )
        self._arguments = (gradient_predivide_factor, num_groups, process_set)
        self._reducer = GradientReducer("DistributedOptimizer", Compression.none, *self._arguments)
        self._optimizer = optimizer
        self.__dict__ = optimizer.__dict__

    def __reduce__(self) -> tuple[Any, ...]:
        return DistributedOptimizer, (self._optimizer, *self._arguments)

    def __getattr__(self, name: str) -> Any:
        if name in DistributedOptimizer.__slots__:  # not there yet
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def create_state(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradient, or the list of gradients, and update. Errors as in allreduce()."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As update(), with a copy of the weights in float32 where the wrapped optimizer has one."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def _average(self, index: Any, grad: Any) -> None:
        several = isinstance(index, (list, tuple))
        indices, gradients = (index, grad) if several else ([index], [grad])
        self._reducer.reduce(lambda: list(gradients), [f"gradient.{i}" for i in indices])


class DistributedTrainer(Trainer):
    """A Gluon trainer that averages gradients over all ranks instead of a key-value store.

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


def _gradient_of(parameter: Parameter) -> NDArray:
    found = parameter.list_grad()
    if len(found) > 1:
        raise ValueError(
            f"Parameter {parameter.name} is on {len(found)} devices ({parameter.list_ctx()}). Horovod has one process "
            "for each device: initialize the model with one context."
        )
    return found[0]
