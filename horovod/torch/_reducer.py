"""Gradient reduction: hooks that start an allreduce as soon as a gradient is complete, and the wait for all
of them.

Used by DistributedOptimizer. Hooks run on autograd's threads during backward; everything else on the thread that calls
the optimizer. A reducer does not know its optimizer, so that the hooks are removed when the optimizer is deleted.

Each step calls one hook per parameter, so hooks do very little: they append gradients to a list, which is submitted to
the engine when it is long enough, and at the end of the backward at the latest.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch

from horovod.common.basics import call_after_the_job, engine
from horovod.common.exceptions import HorovodInternalError
from horovod.common.exports import is_initialized
from horovod.common.process_sets import ProcessSet
from horovod.torch import _gradients
from horovod.torch._devices import stream_of
from horovod.torch._gradients import (
    Group,
    Slot,
    announce,
    come_after_gradient,
    gradient_of,
    is_quick,
    make_wires,
    store,
    wire_form,
)
from horovod.torch._operand import BY_ADDRESS
from horovod.torch._operations import (
    ALLREDUCE,
    SparseReduction,
    _handle_map,
    forget,
    forget_each,
    forget_finished,
    settle_each,
    start_sparse,
    submit,
)
from horovod.torch.compression import Compression, Compressor
from hvd_core._frontend.initial_weights import checked
from hvd_core._frontend.operations import ENGINE_NUMBERS
from hvd_core._runtime.failures import send_failure

# Reductions that have begun but are no longer wanted: their optimizer was deleted, or has abandoned them.
#
# They stay pending, and the engine uses their tensors until they end; until then their names are taken. So they are kept
# here and deleted when they have ended. A new reduction of the same name waits for them. Any thread that holds the GIL,
# finalizers included.

# (process set, name of the request) -> handles. Usually empty, which is all that a submission checks.
ABANDONED: dict[tuple[int | None, str], list[int]] = {}

call_after_the_job(ABANDONED.clear)


def keep_until_done(slots: Iterable[Slot], set_id: int | None) -> None:
    """Keep the pending reductions of these parameters until they end."""
    for slot in slots:
        if slot.handle is not None:
            pending = slot.handle.handles if isinstance(slot.handle, SparseReduction) else (slot.handle,)
            left = [handle for handle in pending if handle in _handle_map]
            if left:
                ABANDONED.setdefault((set_id, slot.request), []).extend(left)
    sweep()


def sweep() -> None:
    """Delete the reductions that have ended."""
    if not ABANDONED or not is_initialized():  # in a forked child they are the parent's
        return
    for key, handles in list(ABANDONED.items()):
        forget_finished(handles)
        if not any(handle in _handle_map for handle in handles):
            ABANDONED.pop(key, None)


def wait_for(set_id: int | None, name: str) -> None:
    """Wait until a name is free. The outcome of its earlier reduction is ignored."""
    core = engine()
    # Kept in the list until the wait is over: after an exception of a signal handler there, the name is still taken.
    for handle in ABANDONED.get((set_id, name), ()):
        if handle in _handle_map:
            with suppress(HorovodInternalError, ValueError):
                core.wait(handle)
            forget(core, handle)
    ABANDONED.pop((set_id, name), None)


# Gradients are collected up to this many bytes, or this many gradients. Larger ones are never held back, and a few
# hundred KiB take longer to reduce than to collect: communication begins as early as without collecting.
_COLLECT_BYTES = 256 << 10
_COLLECT_COUNT = 32

_TOO_MANY_BACKWARDS = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)


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
        self,
        compression: type[Compressor],
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        passes: int,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ):
        self.compression = compression
        self._wire_dtype: torch.dtype | None = (
            compression.wire_dtype if compression in (Compression.fp16, Compression.bf16) else None
        )
        self._quick = (compression is Compression.none or self._wire_dtype is not None) and not BY_ADDRESS
        self.op = op
        self.factors = (prescale_factor, postscale_factor)
        self.passes = passes
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.slots: dict[torch.Tensor, Slot] = {}
        self._groups: list[Group] = []
        self.hooks: list[Any] = []
        self.busy = False  # a backward has begun reductions that synchronize() must finish
        self.core: Any = None  # the engine of these reductions; another one runs after shutdown() and init()
        self.reduced: dict[torch.Tensor, torch.Tensor | None] = {}  # the gradients as synchronize() left them
        self.on_device = False  # a tensor was sent that is not in host memory
        # Slots whose gradients are complete and not submitted. Hooks of several threads add and take: operations of a
        # deque are atomic.
        self._arrived: deque[Slot] = deque()
        self._arrived_bytes = 0
        self._backward_ends = False  # a callback waits for the end of the backward
        # Pending reductions. Always this list object, which a finalizer holds too.
        self.active: list[Slot] = []
        self._handles: list[int] = []
        self._failures: list[BaseException] = []  # of reductions that could not begin
        self.has_warned = False  # of a changed gradient
        # The requests whose weights have not been announced; empty unless HOROVOD_CHECK_CONSISTENCY is set.
        self._unannounced: set[str] = set()
        self._has_homes = False  # gradients live in memory that the ranks share

    # ---------------------------------------------------------------------------------------- registration

    def watch(self, param: torch.Tensor, name: str) -> None:
        """Reduce the gradient of `param` from now on, under `name`."""
        if param in self.slots:  # torch accepts a list that has one parameter twice
            return
        slot = Slot(param, name, self.passes)
        self.slots[param] = slot
        register: Callable[..., Any] = param.register_post_accumulate_grad_hook
        self.hooks.append(register(self._hook_for(slot)))
        if checked():
            self._unannounced.add(slot.request)

    def group(self, members: Iterable[torch.Tensor], name: str) -> None:
        """Reduce the gradients of these parameters as one operation."""
        slots = [self.slots[param] for param in members if param in self.slots]
        if slots:
            self._unannounced.difference_update(slot.request for slot in slots)
            group = Group(name, slots)
            self._groups.append(group)
            if checked():
                self._unannounced.add(group.request)

    def share_memory(self) -> None:
        """Keep the gradients in memory that the ranks share from now on. Call it on all ranks."""
        if not self._quick:
            why = "it needs tensors with DLPack's C exchange API, and no compression of the program's own"
            _gradients.refuse_gradient_buffers(why, self.process_set)
            return
        _gradients.share_memory(self.slots.values(), self._wire_dtype, self.process_set)
        self._has_homes = any(slot.home is not None for slot in self.slots.values())

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes per step()."""
        self.passes = passes
        for slot in self.slots.values():
            slot.delay = passes

    def _begin(self) -> None:
        if not self.busy:
            self.busy, self.core, self.reduced = True, engine(), {}

    def _hook_for(self, slot: Slot) -> Callable[..., Any]:
        def gradient_is_complete(*_: Any) -> None:
            if slot.delay <= 0:
                raise AssertionError(_TOO_MANY_BACKWARDS)
            self._begin()
            slot.delay -= 1
            if slot.delay:
                return
            if not slot.param.is_cpu:
                slot.made_on = stream_of(slot.param.device)
            if slot.group is not None:
                if slot.group.arrived():
                    self._submit(slot.group.slots)
                    self._raise_failure()
                return
            self._arrived.append(slot)
            self._arrived_bytes += slot.nbytes
            if (
                self._arrived_bytes >= _COLLECT_BYTES
                or len(self._arrived) >= _COLLECT_COUNT
                or not (self._backward_ends or self._watch_for_the_end())
            ):
                self._submit_arrived()
                self._raise_failure()

        # Compiled autograd would trace the hook as a part of the backward's graph; this makes it end the graph.
        gradient_is_complete._torchdynamo_disable = True  # type: ignore[attr-defined]  # PyTorch's mark
        return gradient_is_complete

    def _watch_for_the_end(self) -> bool:
        """Have the collected gradients submitted when this backward ends. False if torch cannot call us then."""

        def backward_ends() -> None:
            self._backward_ends = False
            self._submit_arrived()
            self._raise_failure()

        try:
            torch.autograd.Variable._execution_engine.queue_callback(backward_ends)
        except (AttributeError, RuntimeError):
            return False
        self._backward_ends = True
        return True

    # ------------------------------------------------------------------------------------------ submission

    def _submit_arrived(self) -> None:
        """Start the reductions of the collected gradients; after a failure, those of the others."""
        arrived: list[Slot] = []
        self._arrived_bytes = 0
        # From here on no other thread converts or submits them.
        with suppress(IndexError):  # another thread has taken the last one
            while self._arrived:
                arrived.append(self._arrived.popleft())
        if not arrived:
            return
        active, handles = self.active, self._handles
        set_id, number = self.process_set.process_set_id, ENGINE_NUMBERS.get(self.op)
        plain = self._quick and set_id is not None and number is not None
        if plain and self._wire_dtype is not None:
            make_wires(arrived, self._wire_dtype)
        if self._has_homes:
            _gradients.bring_home(arrived)
        if ABANDONED:
            sweep()
        quick, grads, names = [], [], []
        for slot in arrived:
            grad = slot.param.grad if self._wire_dtype is None else slot.sent
            # Whether the engine takes it unchanged, the engine finds out, but for the announcement of its weight.
            quickly = plain and grad is not None and grad.is_cpu and not grad.requires_grad
            if grad is None or not quickly or grad.is_sparse or (self._unannounced and not is_quick(grad)):
                self._submit([slot])
                continue
            if ABANDONED:
                wait_for(set_id, slot.request)
            if self._unannounced:
                self._announce([slot], slot.request)
            quick.append(slot)
            grads.append(grad)
            names.append(slot.request)
        if not quick or set_id is None or number is None:
            return
        # As start_plain(), without the checks whose result is the same for all gradients.
        submitted: list[int | BaseException | None] = []
        others = []
        try:
            engine().try_allreduce_each(grads, names, number, *self.factors, set_id, submitted)
        finally:  # also when Ctrl-C comes meanwhile: the engine uses the gradients from now on
            for slot, grad, handle in zip(quick, grads, submitted):
                if handle is None:
                    others.append(slot)
                    continue
                if not isinstance(handle, int):
                    self._failed([slot], handle)
                    continue
                _handle_map[handle] = grad
                slot.sent, slot.handle, slot.sparse_dim = grad, handle, 0
                if self._wire_dtype is None:
                    slot.version = grad._version
                else:
                    _gradients.note_sent(slot)
                active.append(slot)
                handles.append(handle)
        for slot in others:
            self._submit([slot])

    def _submit(self, slots: list[Slot]) -> None:
        """Start the reduction of one gradient, or of those of a group. A failure is noted for _raise_failure()."""
        first = slots[0]
        group = first.group
        name = first.name if group is None else group.name
        submits = False
        try:
            if group is not None and self._has_homes:
                _gradients.bring_home(slots)
            sent = []
            for slot in slots:
                come_after_gradient(slot)
                grad = gradient_of(slot, self.sparse_as_dense)
                if slot.sparse_dim and not self.sparse_as_dense:
                    if group is None:
                        break
                    raise ValueError(
                        f"Parameter {slot.name} has a sparse gradient and belongs to a group. Use "
                        "sparse_as_dense=True, or leave it out of `groups`."
                    )
                wire = slot.sent = wire_form(slot, grad, self.compression)
                sent.append(wire)
                _gradients.note_sent(slot)
            if ABANDONED:
                wait_for(self.process_set.process_set_id, first.request)
            operation, *requests = self._requests(first)
            if self._unannounced:
                self._announce(slots, requests[0])
            submits = True
            handle: Any
            if operation == "allgather":
                handle = start_sparse(grad, name, self.op, self.process_set)
            else:
                self.on_device = self.on_device or not sent[0].is_cpu
                grouped = group is not None
                tensors, arguments = sent if grouped else sent[0], (self.op, *self.factors)
                handle = submit(ALLREDUCE, tensors, name, self.process_set, arguments, grouped, in_place=True)
                self._handles.append(handle)
        except Exception as error:
            self._failed(slots, error)
            if not submits:  # a submission that fails reports that itself
                operation, *requests = self._requests(first)
                for request in requests:
                    send_failure(operation, request, self.process_set, error)
            return
        for slot in slots:
            slot.handle = handle
        self.active.extend(slots)

    def _requests(self, slot: Slot) -> tuple[str, ...]:
        """The operation that reduces a gradient, and the names of its requests."""
        if slot.group is None and slot.sparse_dim and not self.sparse_as_dense:
            return "allgather", f"allgather.{slot.name}.indices", f"allgather.{slot.name}.values"
        return "allreduce", slot.request

    def _announce(self, slots: list[Slot], sent: str) -> None:
        """Announce the weights of a request before it is sent, under the name `sent`, for the first time."""
        if slots[0].request in self._unannounced:
            self._unannounced.discard(slots[0].request)
            announce(sent, [(slot.name, slot.param) for slot in slots], self.process_set)

    def start(self, param: torch.Tensor) -> tuple[Any, Any]:
        """Start the reduction of a gradient that no hook has started. (its handle, the context of the compression)

        Raises:
            ValueError: `param` is not among the parameters. Other exceptions: the reduction could not begin.
        """
        slot = self.slots.get(param)
        if slot is None:
            raise ValueError("This optimizer does not reduce the gradient of that parameter.")
        self._begin()
        self._submit_arrived()
        if slot.handle is None and not slot.failed:
            self._submit([slot] if slot.group is None else slot.group.slots)
        self._raise_failure()
        return slot.handle, slot.context

    def _failed(self, slots: list[Slot], error: BaseException) -> None:
        """Note reductions that could not begin. They are not submitted again in this round: another submission would
        belong to the next one."""
        self._failures.append(error)
        for slot in slots:
            slot.failed = True

    def _raise_failure(self) -> None:
        """Raise the first exception that kept a reduction of this round from beginning."""
        if self._failures:
            raise self._failures[0]

    def _submit_missing(self) -> None:
        """Start the reductions that no hook has started: each rank may have used other parameters."""
        if len(self.active) == len(self.slots):
            return
        for slot in self.slots.values():
            if slot.handle is not None or slot.failed:
                continue
            if slot.group is not None:
                self._submit(slot.group.slots)
            elif slot.param.requires_grad:
                self._submit([slot])

    # ------------------------------------------------------------------------------------------ completion

    def synchronize(self) -> None:
        """Wait until all gradients are reduced and stored in ``param.grad``.

        Raises:
            HorovodInternalError: a reduction failed; nothing is pending afterwards.
            AssertionError, ValueError: a reduction could not begin on this rank, so that it has failed on the others.
        """
        core = engine()
        if self.busy and self.core is not core:
            self._clear()
        self.core = core
        try:
            self._submit_arrived()
            self._submit_missing()
            handles = self._handles
            if self.on_device:
                settle_each(core, handles)
            else:
                core.wait_many(handles)
            self._raise_failure()
            grads, wires = [], []
            changed = None
            for slot in self.active:
                grad = slot.param.grad
                if grad is not None and grad is slot.sent and grad._version == slot.version:
                    continue
                if _gradients.is_changed(slot, grad):
                    changed = slot
                if grad is slot.sent:
                    continue
                if grad is not None and slot.sent is not None and slot.sent is slot.wire and is_quick(grad):
                    grads.append(grad)
                    wires.append(slot.sent)
                else:
                    store(slot, self.compression)
            if grads:
                torch._foreach_copy_(grads, wires)
        except BaseException:
            self.abandon()
            raise
        forget_each(core, handles)
        self._clear()
        if changed is not None and not self.has_warned:
            self.has_warned = True
            _gradients.warn_changed(changed)

    def remember_reduced(self) -> None:
        """Note the gradients that synchronize() has left, for still_reduced()."""
        self.reduced = {param: param.grad for param in self.slots}

    def still_reduced(self) -> bool:
        """Whether the gradients are those that were noted last: not cleared and computed anew since then."""
        return all(param.grad is grad for param, grad in self.reduced.items())

    def _clear(self) -> None:
        self.busy = self._backward_ends = False
        self._arrived.clear()
        self._arrived_bytes = 0
        for collected in (self.active, self._handles, self._failures):
            collected.clear()
        for slot in self.slots.values():
            slot.delay = self.passes
            slot.handle = slot.sent = slot.context = slot.given = None
            slot.version = -1
            slot.failed = False
        for group in self._groups:
            group.renew()

    def abandon(self) -> None:
        """Forget the pending reductions, without waiting for them."""
        set_id = self.process_set.process_set_id
        keep_until_done(self.active, set_id)
        for slot in self.active:
            if (set_id, slot.request) in ABANDONED:
                # The engine still writes to their memory. So the next backward must not add to the gradient, as it would
                # after zero_grad(set_to_none=False).
                slot.param.grad = slot.wire = slot.home = None
        self._clear()
