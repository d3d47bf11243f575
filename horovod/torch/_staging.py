"""Tensors on devices that no backend serves: PyTorch copies them to host memory and the results back.

So a device works on its first day, and a program without the backend's wheel runs, if more slowly.

A call returns at once, as on any device. Its copy is enqueued on a separate stream, behind the work that the caller's
current stream has so far; a helper thread waits for the copy and lets the operation begin. Until then
the engine holds the operation back: it has its name and its number since the call, so that ranks agree. The result is
copied back on the current stream of the thread that calls synchronize() or poll(), in order with work that is given to
this stream later.

Buffers are pinned memory of PyTorch's own allocator, which knows the streams that still use them. A device without
streams, events or pinned memory (see `_devices.streams_of`) is copied by calls that wait.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from horovod.common.basics import UNAVAILABLE
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import _devices
from horovod.torch._devices import streams_of
from horovod.torch._dtypes import DTYPE_NUMBERS
from hvd_core._frontend import memory
from hvd_core._runtime import current_job

# The helper thread that waits for copies from devices to host memory, and then lets their operations begin: one per
# process, in the order of the calls. The interpreter waits for it at its end, before the engine ends.
_helper = ThreadPoolExecutor(1, "hvd-copies")
_parents: list[ThreadPoolExecutor] = []  # in a forked child: kept, because what they hold is the parent's


def _in_forked_child() -> None:
    """The child has no helper thread."""
    global _helper
    _parents.append(_helper)
    _helper = ThreadPoolExecutor(1, "hvd-copies")


os.register_at_fork(after_in_child=_in_forked_child)


def _begin(core: Any, handle: int, copied: Any, kept: Any = None) -> None:
    """Wait for the event `copied`, if there is one, and let the operation begin; a copy that failed fails all ranks.
    `kept` keeps the memory alive. To begin twice does no harm."""
    try:
        if copied is not None:
            copied.synchronize()
        core.begin(handle)
    except (ValueError, HorovodInternalError):
        pass  # the operation has ended with the job
    except Exception as error:
        text = f"a tensor could not be copied to host memory: {type(error).__name__}: {error}"
        with suppress(ValueError, HorovodInternalError):
            core.give_up(handle, text.encode("utf-8", "backslashreplace").decode())


if UNAVAILABLE is None:
    from hvd_core._core import TensorRef


def why_not(tensor: torch.Tensor) -> str:
    """The text of the error for a tensor on a device that no backend serves; "" if it can be copied through host memory.

    Logs a warning at the first tensor of a device type.
    """
    kind = tensor.device.type
    if kind == "meta":
        return (
            "The tensor is on the device 'meta', where tensors have no data, so there is nothing to communicate. Give it "
            "memory first, such as module.to_empty(device=...) followed by the initialisation of the values."
        )
    text = memory.refusal(kind)
    if not text:
        memory.warn_once(kind)
    return text


def submitted(
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor] | None,
    core: Any,
    is_sent: bool = True,
    is_received: bool = True,
    separate: bool = False,
) -> "_devices.Submitted | Staged":
    """The form in which the engine `core` takes tensors of one device, and the steps of synchronize().

    Args:
        inputs, outputs: as for `_devices.Submitted`.
        is_sent, is_received: whether the operation reads `inputs` and writes `outputs` on this rank.
        separate: results must not be written to copies of the inputs.
    """
    if _devices.is_served(inputs[0], core):
        return _devices.Submitted(inputs, outputs)
    return Staged(inputs, outputs, is_sent, is_received, separate)


class Staged:
    """An operation on copies of device tensors. The interface is that of `_devices.Submitted`.

    Args:
        inputs, outputs, is_sent, is_received, separate: as for `submitted`.
    """

    __slots__ = (
        "_back", "_back_on", "_began", "_called", "_called_on", "_hosts", "_is_received", "_results", "_streams",
        "device", "inputs", "outputs", "ready", "sources", "targets",
    )  # fmt: skip

    deferred = True

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor] | None,
        is_sent: bool = True,
        is_received: bool = True,
        separate: bool = False,
    ):
        self.inputs, self.outputs, self._is_received = inputs, outputs, is_received
        self._began = False
        self.sources: Sequence[Any] = ()
        self.device = inputs[0].device
        self._streams = streams_of(self.device)
        self._back: Any = None
        self._back_on: Any = None
        self._called_on: Any = None
        self._called: Any = None
        if self._streams is not None:
            # First, as it refuses a stream that is recorded for a graph: to allocate pinned memory would end the record.
            self._called_on = self._streams.current()
        self.ready = None  # an event: the inputs are in host memory; None: they are there
        self._hosts = [self._host(tensor) for tensor in inputs]
        # The copies are ours, so a result of the same layout may take the place of its input.
        alike = outputs is inputs or (outputs is not None and not separate and _same_shapes(inputs, outputs))
        self._results = self._hosts if alike else [self._host(tensor) for tensor in outputs or ()]
        self._copy_to_host(is_sent)
        self.sources = [self._reference(host) for host in self._hosts]
        self.targets = self.sources if alike else [self._reference(host) for host in self._results]

    def _host(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned = self._streams is not None
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)

    def _reference(self, host: torch.Tensor) -> Any:
        number = DTYPE_NUMBERS[host.dtype]
        kind = self.device.type
        return TensorRef(host.data_ptr(), tuple(host.shape), number, owner=host, staged_from=kind)

    def _copy_to_host(self, is_sent: bool) -> None:
        pairs = [(host, t.detach()) for host, t in zip(self._hosts, self.inputs) if is_sent and t.numel()]
        streams = self._streams
        if streams is None:
            for host, tensor in pairs:
                host.copy_(tensor)
            return
        self._called = streams.mark(self._called_on)
        if pairs:
            # Not on the caller's stream, whose later work would have to wait for the copy.
            with streams.copying_after(self._called) as side:
                for host, tensor in pairs:
                    host.copy_(tensor, non_blocking=True)
                self.ready = streams.mark(side, waits=True)

    def begin(self, core: Any, handle: int, wait: bool) -> None:
        """Let the operation begin when its inputs are in host memory. Returns at once, unless `wait` is true."""
        try:
            if wait or self.ready is None:
                _begin(core, handle, self.ready)
            else:
                _helper.submit(_begin, core, handle, self.ready, self)
        except BaseException as error:
            # Of a signal handler, for which the other ranks shall not wait; or the interpreter is at its end.
            _begin(core, handle, self.ready)
            if not isinstance(error, RuntimeError):
                raise
        self._began = True

    def __del__(self) -> None:
        # The exception of a signal handler may come between the engine's call and begin(). The other ranks wait for the
        # operation, so it takes part, and this rank forgets it. To begin twice does no harm.
        handle: int | None = None if self._began or not self.sources else self.sources[0].deferred
        job = current_job.current() if handle is not None else None
        if handle is None or job is None or job.is_parents():
            return
        _begin(job.engine, handle, self.ready)
        job.engine.release(handle)

    def poll(self, core: Any, handle: int) -> bool:
        """Whether the results are on the device. Enqueues their copies when the operation has ended."""
        if not core.poll(handle):
            return False
        if self.outputs is None:
            return True  # they become tensors of the device in synchronize()
        try:
            core.wait(handle)
        except HorovodInternalError:
            return True
        self._copy_back()
        return self._back is None or self._back.query()

    def all(self, core: Any, handle: int) -> Sequence[torch.Tensor]:
        """The outputs on the device, complete for work that is given to the current stream from now on."""
        core.wait(handle)
        if self.outputs is None:
            return [self._to_device(from_dlpack(core.output(handle, i))) for i in range(len(self.inputs))]
        self._copy_back()
        return self.outputs

    def _to_device(self, host: torch.Tensor) -> torch.Tensor:
        if self._streams is not None:
            pinned = self._host(host)  # the engine's memory is not pinned, so that a copy from it would wait
            host = pinned.copy_(host)
        result = torch.empty(host.shape, dtype=host.dtype, device=self.device)
        return result.copy_(host, non_blocking=self._streams is not None)

    def _copy_back(self) -> None:
        if not self._is_received:
            return
        streams, outputs = self._streams, self.outputs or ()
        if streams is None:
            for output, host in zip(outputs, self._results):
                if output.numel():
                    _overwrite(output, host, False)
            self._is_received = False  # it has the result now
            return
        now = streams.current()
        if self._back is not None:
            if now != self._back_on:
                now.wait_event(self._back)
                _devices.record(outputs, self.device)
            return
        if now != self._called_on:
            # The memory of the outputs belongs to the stream of the call: its earlier use has ended, and it is notified
            # of the use by this stream.
            now.wait_event(self._called)
            _devices.record(outputs, self.device)
        for output, host in zip(outputs, self._results):
            if output.numel():
                _overwrite(output, host, True)
        self._back, self._back_on = streams.mark(now), now


def _same_shapes(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    return all(a.shape == b.shape for a, b in zip(inputs, outputs))


def _overwrite(output: torch.Tensor, host: torch.Tensor, non_blocking: bool) -> None:
    # Through `data`, as the engine writes to memory: autograd does not see it.
    if output.is_inference():
        with torch.inference_mode():
            output.copy_(host, non_blocking=non_blocking)
    else:
        output.data.copy_(host, non_blocking=non_blocking)
