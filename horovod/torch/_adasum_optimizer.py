"""DistributedOptimizer with op=Adasum: each rank does its own step, and Adasum combines the changes of the weights.

Adasum is for changes of the weights rather than for gradients: a change contains the learning rate and the optimizer's
own arithmetic. Belongs to one thread, like any optimizer; there are no hooks.
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch

from horovod.common.arguments import Adasum, check_backward_passes
from horovod.common.process_sets import ProcessSet
from horovod.torch import _initial_weights
from horovod.torch._async_ops import allreduce_async_
from horovod.torch._optimizer_arguments import find_duplicates
from horovod.torch._submit import forget_finished, synchronize
from horovod.torch.compression import Compressor


class DeltaOptimizer(torch.optim.Optimizer):
    """The methods that precede those of the wrapped optimizer's class."""

    op = Adasum

    def _distribute(
        self,
        names: dict[torch.Tensor, str],
        compression: type[Compressor],
        passes: int,
        process_set: ProcessSet,
    ) -> None:
        self._parameter_names = names
        self._compression = compression
        self.backward_passes_per_step = passes
        self.process_set = process_set
        self._starts: dict[torch.Tensor, torch.Tensor] = {}  # the weights before the step

    find_duplicates = staticmethod(find_duplicates)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes per step()."""
        check_backward_passes(passes)
        self.backward_passes_per_step = passes

    def add_param_group(self, param_group: dict) -> None:
        """Add a group of parameters. Call it on all ranks."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        for position, param in enumerate(self.param_groups[index]["params"]):
            self._parameter_names.setdefault(param, f"allreduce.noname.{index}.{position}")

    def synchronize(self) -> None:
        """Does nothing: gradients stay this rank's own."""

    @contextmanager
    def skip_synchronize(self):
        """Not possible with Adasum. Raises AssertionError."""
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer: step() does a step with this rank's "
            "gradients and combines the changes of the weights. Change gradients before step(), without "
            "skip_synchronize()."
        )
        yield

    def step(self, closure: Callable | None = None) -> Any:
        """Do a step of the wrapped optimizer with this rank's gradients, and combine the changes of all ranks' steps.

        Args:
            closure: as in the wrapped optimizer.

        Returns:
            The result of the wrapped optimizer's step().

        Raises:
            HorovodInternalError: the ranks could not combine their steps. The parameters are as before the call then.
        """
        if not self.process_set.included():
            return super().step() if closure is None else super().step(closure)
        own = {param for group in self.param_groups for param in group["params"]}
        params = [param for param in self._parameter_names if param.requires_grad and param in own]
        with torch.no_grad():
            for param in params:
                start = self._starts.get(param)
                if start is None or start.shape != param.shape or start.dtype != param.dtype:
                    start = self._starts[param] = torch.empty_like(param, requires_grad=False)
                start.copy_(param)
        loss = super().step() if closure is None else super().step(closure)
        with torch.no_grad():
            try:
                self._combine(params)
            except BaseException:
                for param in params:
                    param.copy_(self._starts[param])
                raise
        return loss

    # torch wraps the step() of each optimizer class to call its step hooks; super().step() already does.
    step.hooked = True

    def _combine(self, params: list[torch.Tensor]) -> None:
        """Replace the change that the step made to each parameter by the Adasum of all ranks' changes."""
        pending = []
        checked = _initial_weights.checked()
        try:
            for param in params:
                change = param.detach().sub(self._starts[param])
                plain = (
                    torch.view_as_real(change.resolve_conj()) if change.is_complex() else change.resolve_neg()
                )
                sent, context = self._compression.compress(plain.contiguous())
                name = self._parameter_names[param]
                if checked:
                    start = self._starts[param]
                    _initial_weights.announce(f"allreduce.{name}", [(name, start)], self.process_set)
                handle = allreduce_async_(sent, name=name, op=Adasum, process_set=self.process_set)
                pending.append((param, handle, context))
            for param, handle, context in pending:
                change = self._compression.decompress(synchronize(handle), context)
                if param.is_complex():
                    change = torch.view_as_complex(change)
                torch.add(self._starts[param], change, out=param.detach())
        except BaseException:
            forget_finished(handle for _, handle, _ in pending)
            raise
