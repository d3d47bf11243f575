"""Gradient reduction: hooks that start an allreduce as soon as a gradient is complete, and the wait for all
of them.

Used by DistributedOptimizer; empty_sparse also by functions.py. Hooks run on autograd's threads during backward;
everything else on the thread that calls the optimizer. A reducer does not know its optimizer, so that dropping the
optimizer removes the hooks.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch._async_ops import SparseReduction, reduce_group_into, reduce_into, sparse_allreduce_async
from horovod.torch._submit import engine, forget, forget_finished, is_current, settle
from horovod.torch.compression import Compression

# torch < 2.1 has no hook that runs after the gradient is stored; there the accumulator node of the graph is
# hooked.
HAS_POST_ACCUMULATE_HOOK = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")

_TOO_MANY_BACKWARDS = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)


class _Slot:
    """One parameter: how often its gradient is still to be computed, and the reduction that is under way."""

    __slots__ = ("anchor", "context", "delay", "group", "handle", "name", "param", "sent", "sparse_dim")

    def __init__(self, param: torch.Tensor, name: str, delay: int):
        self.param = param
        self.name = name
        self.delay = delay
        self.handle: int | SparseReduction | None = None
        self.sent: torch.Tensor | None = None
        self.context: Any = None
        self.group: _Group | None = None
        self.sparse_dim = 0  # of the last gradient; 0 for a dense one
        self.anchor: Any = None  # keeps the accumulator node alive, whose hook dies with it


class _Group:
    """Parameters that are reduced as one operation, once all their gradients are complete."""

    __slots__ = ("name", "slots")

    def __init__(self, name: str, slots: list[_Slot]):
        self.name = name
        self.slots = slots
        for slot in slots:
            slot.group = self


def empty_sparse(param: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """A sparse gradient of zeros for `param`."""
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=param.device)
    values = torch.empty((0, *param.shape[sparse_dim:]), dtype=param.dtype, device=param.device)
    return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)


class GradientReducer:
    """Reduces the gradients of a set of parameters.

    Args:
        compression: a Compressor class.
        op: hvd.Average or another reduce op.
        prescale_factor, postscale_factor: factors of every reduction.
        passes: backward passes per step().
        sparse_as_dense: reduce sparse gradients as dense ones.
        process_set: the ranks that take part.
    """

    def __init__(
        self, compression, op, prescale_factor, postscale_factor, passes, sparse_as_dense, process_set
    ):
        self.compression = compression
        self.op = op
        self.factors = (prescale_factor, postscale_factor)
        self.passes = passes
        self.sparse_as_dense = sparse_as_dense
        self.process_set: ProcessSet = process_set
        self.slots: dict[torch.Tensor, _Slot] = {}
        self.hooks: list = []
        self.busy = False  # a backward has begun what synchronize() has to finish
        self.core: Any = None  # the engine that has begun it; another one after shutdown() and init()
        self.on_device = False  # something was sent that is not in host memory

    # ---------------------------------------------------------------------------------------- registration

    def watch(self, param: torch.Tensor, name: str) -> None:
        """Reduce the gradient of `param` from now on, under `name`."""
        slot = _Slot(param, name, self.passes)
        self.slots[param] = slot
        if HAS_POST_ACCUMULATE_HOOK:
            self.hooks.append(param.register_post_accumulate_grad_hook(self._hook_for(slot)))
        else:
            accumulator = param.expand_as(param).grad_fn.next_functions[0][0]
            slot.anchor = accumulator
            self.hooks.append(accumulator.register_hook(self._hook_for(slot)))

    def group(self, members: Iterable[torch.Tensor], name: str) -> None:
        """Reduce the gradients of these parameters as one operation."""
        slots = [self.slots[param] for param in members if param in self.slots]
        if slots:
            _Group(name, slots)

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes per step()."""
        self.passes = passes
        for slot in self.slots.values():
            slot.delay = passes

    def _hook_for(self, slot: _Slot) -> Callable:
        def gradient_is_complete(*_) -> None:
            if slot.delay <= 0:
                raise AssertionError(_TOO_MANY_BACKWARDS)
            if not self.busy:
                self.busy = True
                self.core = engine()
            slot.delay -= 1
            if slot.delay:
                return
            if slot.group is None:
                self._submit(slot)
            elif all(member.delay == 0 for member in slot.group.slots):
                self._submit_group(slot.group)

        return gradient_is_complete

    # ------------------------------------------------------------------------------------------ submission

    def _gradient(self, slot: _Slot) -> torch.Tensor:
        """The gradient of a parameter, zero if this rank did not compute one: the other ranks may have."""
        param = slot.param
        grad = param.grad
        if grad is None:
            if slot.sparse_dim and not self.sparse_as_dense:
                grad = empty_sparse(param, slot.sparse_dim)
            else:
                grad = torch.zeros_like(param, requires_grad=False)
            # A frozen member of a group has to be sent too, but must not be changed by the optimizer.
            if param.requires_grad:
                param.grad = grad
        elif grad.requires_grad:
            raise AssertionError(
                f"The gradient of {slot.name} requires grad itself (create_graph=True), which "
                "DistributedOptimizer cannot reduce. Detach it first, or use hvd.allreduce."
            )
        slot.sparse_dim = grad.sparse_dim() if grad.layout is torch.sparse_coo else 0
        return grad

    def _wire_form(self, slot: _Slot, grad: torch.Tensor) -> torch.Tensor:
        """What is sent for `grad`: itself if possible, so that it is reduced in place."""
        if slot.sparse_dim:
            grad = grad.to_dense()
        if grad.is_complex():
            grad = torch.view_as_real(grad)
        slot.context = None
        if self.compression is not Compression.none:
            grad, slot.context = self.compression.compress(grad)
        return grad if grad.is_contiguous() else grad.contiguous()

    def _submit(self, slot: _Slot) -> None:
        grad = self._gradient(slot)
        if slot.sparse_dim and not self.sparse_as_dense:
            slot.handle = sparse_allreduce_async(grad, slot.name, self.op, self.process_set)
            return
        sent = self._wire_form(slot, grad)
        slot.sent = sent
        self.on_device = self.on_device or not sent.is_cpu
        slot.handle = reduce_into(sent, sent, slot.name, self.op, *self.factors, self.process_set)

    def _submit_group(self, group: _Group) -> None:
        for slot in group.slots:
            grad = self._gradient(slot)
            if slot.sparse_dim and not self.sparse_as_dense:
                raise ValueError(
                    f"Parameter {slot.name} has a sparse gradient and belongs to a group. Use "
                    "sparse_as_dense=True, or leave it out of `groups`."
                )
            slot.sent = self._wire_form(slot, grad)
        sent = [slot.sent for slot in group.slots]
        self.on_device = self.on_device or not sent[0].is_cpu
        handle = reduce_group_into(sent, sent, group.name, self.op, *self.factors, self.process_set)
        for slot in group.slots:
            slot.handle = handle

    def _submit_missing(self) -> None:
        """Start what no hook has started: each rank may have used other parameters."""
        for slot in self.slots.values():
            if slot.handle is not None:
                continue
            if slot.group is not None:
                self._submit_group(slot.group)
            elif slot.param.requires_grad:
                self._submit(slot)

    # ------------------------------------------------------------------------------------------ completion

    def handles(self) -> dict:
        """{parameter: (handle or None, context)} of the parameters whose gradients have been computed."""
        return {
            param: (slot.handle, slot.context)
            for param, slot in self.slots.items()
            if slot.handle is not None or slot.delay < self.passes
        }

    def synchronize(self) -> None:
        """Wait until all gradients are reduced and stored in ``param.grad``.

        Raises:
            HorovodInternalError: a reduction failed; nothing is pending afterwards.
        """
        core = engine()
        if self.busy and self.core is not core:
            self._clear()
        self.core = core
        self._submit_missing()
        active = [slot for slot in self.slots.values() if slot.handle is not None]
        handles = list({slot.handle: None for slot in active if type(slot.handle) is int})
        try:
            core.wait_many(handles)
            if self.on_device:
                for handle in handles:
                    settle(core, handle)
            for slot in active:
                self._store(slot)
        except BaseException:
            self.abandon()
            raise
        for handle in handles:
            forget(core, handle)
        self._clear()

    def _store(self, slot: _Slot) -> None:
        param = slot.param
        if isinstance(slot.handle, SparseReduction):
            param.grad = slot.handle()
            return
        sent = slot.sent
        grad = param.grad
        if grad is sent:
            return
        if grad is None:  # frozen, or somebody has set it to None since the backward
            if not param.requires_grad:
                return
            grad = param.grad = torch.zeros_like(param, requires_grad=False)
        with torch.no_grad():
            reduced = self.compression.decompress(sent, slot.context)
            if slot.sparse_dim:
                param.grad = reduced.to_sparse(slot.sparse_dim)
            elif grad.is_complex():
                torch.view_as_real(grad).copy_(reduced)
            else:
                grad.copy_(reduced)

    def _clear(self) -> None:
        self.busy = False
        for slot in self.slots.values():
            slot.delay = self.passes
            slot.handle = slot.sent = slot.context = None

    def abandon(self) -> None:
        """Forget what is under way, without waiting for it.

        The tensors of operations that still run stay in the handle map: the engine writes to their memory.
        """
        if is_current(self.core):
            for slot in self.slots.values():
                if isinstance(slot.handle, SparseReduction):
                    forget_finished(slot.handle.handles)
                else:
                    forget_finished((slot.handle,))
        self._clear()
