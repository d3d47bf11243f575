"""Reducing the gradients of a step: all are submitted, then waited for. Used by the trainer and the optimizer.

A gradient is submitted when MXNet has computed it, the last of the model first, as the backward pass makes them in this
order: the others are computed meanwhile.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from horovod.common.arguments import (
    Average,
    check_predivide_factor,
    check_registered,
    predivide_factors,
)
from horovod.common.basics import engine
from horovod.common.exceptions import HorovodInternalError
from horovod.common.failed_calls import reported_for_each
from horovod.common.process_sets import ProcessSet
from horovod.common.util import split_list
from horovod.mxnet._arrays import REDUCIBLE, NDArray, check, reference
from hvd_core._frontend.reductions import engine_number
from hvd_core._runtime.process_set import number_of

_AVERAGE = engine_number(Average)


class GradientReducer:
    """Averages gradients over the ranks of a process set, in place.

    Args:
        caller: the class that is used by the program, for texts.
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
        self.compression, self.num_groups, self.process_set = compression, num_groups, process_set
        self._factors = predivide_factors(gradient_predivide_factor)

    def reduce(self, gradients: Callable[[], list[NDArray]], names: list[str]) -> None:
        """Replace gradients by their averages.

        Args:
            gradients: returns them. The other ranks hear of an error that it raises.
            names: of the gradients.

        Raises:
            ValueError: a gradient is sparse, on a device, or of another type than a float or an integer; or the process
                set is not registered any more. The other ranks' calls fail then.
            MXNetError: the backward pass has failed.
            HorovodInternalError: ranks disagree, or a rank is gone.
        """
        order = list(range(len(names)))[::-1]
        groups = split_list(order, self.num_groups) if self.num_groups else [[index] for index in order]
        prefix = "grouped_allreduce" if self.num_groups else "allreduce"
        handles: list[int] = []
        wires: list[tuple] = []
        core = engine()
        try:
            self._submit(core, gradients, names, [group for group in groups if group], prefix, handles, wires)
            core.wait_many(handles)
        finally:
            # The engine keeps the arrays of operations whose handles are released before their end.
            for handle in handles:
                with suppress(HorovodInternalError, ValueError):
                    core.release(handle)
        for gradient, wire, context in wires:
            if wire is not gradient:
                gradient[:] = self.compression.decompress(wire, context)

    def _submit(self, core, gradients, names, groups, prefix, handles, wires) -> None:
        left = [names[group[0]] for group in groups]  # the first member names a group
        with reported_for_each("allreduce", prefix, left, self.process_set):
            number = number_of(self.process_set)
            arrays = gradients()
            for array, name in zip(arrays, names):
                try:
                    check(array, REDUCIBLE)
                except ValueError as error:
                    raise ValueError(f"gradient {name}: {error}") from None
            for group in groups:
                sent = []
                for index in group:
                    wire, context = self.compression.compress(arrays[index])
                    wires.append((arrays[index], wire, context))
                    sent.append(reference(wire, writes=True))
                operand = sent if self.num_groups else sent[0]
                # From here on the engine reports its own refusals.
                full_name = f"{prefix}.{left.pop(0)}"
                handles.append(core.allreduce(operand, operand, full_name, _AVERAGE, *self._factors, number))
