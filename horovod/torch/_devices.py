"""Tensors that do not lie in host memory: how the engine takes them, and when their results may be read.

On a device a call returns before its work is done. The engine takes a tensor's address and the *native stream* whose
work so far must be done first: the stream that is current for the thread that submits the operation (hooks run on
autograd's threads, which have streams of their own). The result is ready for work that is submitted later to the current
stream of the thread that calls synchronize(); the host does not wait. This file names no device and no vendor: a
convention says how to find a current stream, and `register_stream_provider` serves devices that do not follow it.
Used by the modules of this package, from any thread that holds the GIL.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from horovod.common.basics import UNAVAILABLE
from horovod.torch._dtypes import DTYPE_NUMBERS

# The streams and events of a type of device, for copies between device and host that do not make the host wait.
#
# They are those of PyTorch's module for the device (torch.cuda, torch.xpu, ...). Used by `_staging`; any thread.

_NEEDED = ("Event", "Stream", "current_stream", "stream")

_streams: dict[torch.device, "DeviceStreams | None"] = {}


def streams_of(device: torch.device) -> "DeviceStreams | None":
    """The streams of a device; None if its copies have to wait, because streams, events or pinned memory are missing."""
    try:
        return _streams[device]
    except KeyError:
        pass
    module = getattr(torch, device.type, None)
    found = None
    if all(hasattr(module, name) for name in _NEEDED) and _pins_memory_for(device.type):
        found = DeviceStreams(module, device)
    return _streams.setdefault(device, found)


def _pins_memory_for(kind: str) -> bool:
    """Whether torch.empty(pin_memory=True) makes memory that the device copies without waiting."""
    accelerator = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
    if accelerator is None:  # an older PyTorch, which pins memory for one type of device only
        if kind != "cuda":
            return False
    elif getattr(accelerator(), "type", None) != kind:
        return False
    try:
        return torch.empty(1, device="cpu", pin_memory=True).is_pinned()
    except (RuntimeError, NotImplementedError, TypeError):
        return False


class DeviceStreams:
    """The streams of one device.

    Args:
        module: PyTorch's module for the type of device.
        device: with its index.
    """

    def __init__(self, module: Any, device: torch.device):
        self._module, self._device = module, device
        self._side = module.Stream(device)
        self._is_capturing = getattr(module, "is_current_stream_capturing", None)
        try:
            module.Event(blocking=True)
            self._waiting = {"blocking": True}
        except TypeError:
            self._waiting = {}

    def current(self) -> Any:
        """The calling thread's current stream.

        Raises:
            ValueError: its work is being recorded for a graph, which cannot contain an operation of the host.
        """
        if self._is_capturing is not None and self._is_capturing():
            raise ValueError(
                f"This operation cannot be captured in a {self._device.type} graph: no backend serves such devices in "
                "this job, so that the data go through host memory. Call it outside of the graph."
            )
        return self._module.current_stream(self._device)

    def mark(self, stream: Any, waits: bool = False) -> Any:
        """An event at the end of the present work of `stream`. `waits`: a thread will wait for it, and shall sleep then
        where the device offers that."""
        event = self._module.Event(**(self._waiting if waits else {}))
        event.record(stream)
        return event

    @contextmanager
    def copying_after(self, event: Any) -> Iterator[Any]:
        """Make the stream for copies current, whose work waits for `event`. Yields the stream."""
        with self._module.stream(self._side):
            self._side.wait_event(event)
            yield self._side


if UNAVAILABLE is None:
    from hvd_core._core import TensorRef

StreamProvider = Callable[[int], int | None]

_DTYPES = {number: dtype for dtype, number in DTYPE_NUMBERS.items()}

# By type of device: those that were registered, and those that were found.
_providers: dict[str, StreamProvider] = {}

# The last engine, and whether it serves the device types that have come so far. Weak, so that an ended engine can be
# deleted.
_served: tuple[Callable[[], Any], dict[str, bool]] = (lambda: None, {})


def register_stream_provider(device_type: str, provider: StreamProvider) -> None:
    """Say how to find the current stream of a type of device. For vendors of devices; most need not call it.

    Without a provider the module ``torch.<device_type>`` is used: the result of ``current_stream(index)`` must have an
    attribute ``<device_type>_stream``, ``sycl_queue`` or ``native_handle`` with the address of the vendor's stream.
    Without such an attribute the device is synchronized before each operation. A provider that synchronizes the device
    and returns None also serves a backend that cannot use the framework's streams.

    Args:
        device_type: as in ``torch.device(device_type)``.
        provider: called with the index of a device, by the thread that submits; returns the address of the native
            stream that is current for that thread (0 is a valid address), or None if it has waited for the device, so
            that the data are ready.
    """
    _providers[device_type] = provider


def current_stream(device: torch.device) -> int | None:
    """Address of the calling thread's current stream of a device; None: all work of the device is done."""
    provider = _providers.get(device.type)
    if provider is None:
        provider = _providers[device.type] = _find(device.type, device.index)
    return provider(device.index)


def _find(kind: str, index: int) -> StreamProvider:
    module = getattr(torch, kind, None)
    current = getattr(module, "current_stream", None)
    if current is not None:
        stream = current(index)
        for attribute in (f"{kind}_stream", "sycl_queue", "native_handle"):
            # A null address is the default stream; one of the three attributes has None for it.
            if isinstance(getattr(stream, attribute, ""), int | None):
                return lambda index: getattr(current(index), attribute) or 0
    synchronize = getattr(module, "synchronize", None)
    if synchronize is None:
        raise ValueError(
            f"horovod: how to find the current stream of {kind} devices is not known: there is no torch.{kind} with "
            "current_stream() or synchronize(). Register a function with hvd.register_stream_provider()."
        )

    def wait(index: int) -> None:
        synchronize(index)

    return wait


def is_served(tensor: torch.Tensor, core: Any) -> bool:
    """Whether the engine `core` takes tensors of the device type of `tensor`. The first tensor of a type may take
    seconds: its backend is looked for then."""
    global _served
    if _served[0]() is not core:
        _served = (weakref.ref(core), {})
    kind, served = tensor.device.type, _served[1]
    if kind not in served:
        served[kind] = core.serves(kind)
    return served[kind]


def several_devices(tensors: Sequence[torch.Tensor]) -> str:
    """Empty if all tensors are on one device, else the text of the error."""
    devices = list(dict.fromkeys(str(tensor.device) for tensor in tensors))
    if len(devices) == 1:
        return ""
    return (
        "A grouped operation needs all its tensors on the same device, but found tensors on "
        f"{' and '.join(devices)}. Make one group per device."
    )


def reference(tensor: torch.Tensor, stream: int | None = None) -> Any:
    """The form in which the engine takes `tensor`: address, shape, type. On a device the data are ready when the work
    that is now in `stream` is done."""
    number = DTYPE_NUMBERS[tensor.dtype]
    if tensor.is_cpu:
        return TensorRef(tensor.data_ptr(), tuple(tensor.shape), number, "cpu", 0, owner=tensor)
    device = tensor.device
    return TensorRef(
        tensor.data_ptr(), tuple(tensor.shape), number, device.type, device.index or 0, stream, tensor
    )


class Submitted:
    """An operation on device tensors: the form in which the engine takes them, and the steps of synchronize().

    Args:
        inputs: tensors on one device.
        outputs: tensors of the caller that are written; `inputs` itself for an operation in place; None where the
            engine allocates the results.
    """

    __slots__ = ("device", "inputs", "outputs", "sources", "stream", "targets")

    deferred = False  # the engine takes the tensors as they are

    def __init__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None):
        self.inputs, self.outputs = inputs, outputs
        self.device = inputs[0].device
        # Looked up once: the tensors of one call are ready at the same point of the stream.
        self.stream = current_stream(self.device)
        self.sources = [reference(tensor, self.stream) for tensor in inputs]
        self.targets = self.sources
        if outputs is not None and outputs is not inputs:
            self.targets = [reference(tensor, self.stream) for tensor in outputs]

    def begin(self, core: Any, handle: int, wait: bool) -> None:
        """Nothing: the operation has begun."""

    def settle(self, core: Any, handle: int) -> int | None:
        """Let the calling thread's current stream wait for the operation that `core` has enqueued. Returns the stream."""
        now = current_stream(self.device)
        core.order_after(handle, now)
        if now != self.stream and now is not None:
            # When the tensors are freed, their memory returns to the stream that it was allocated for, which does not
            # wait for the operation. So the framework must know that another stream uses it.
            record(self.inputs, self.device)
            if self.outputs is not None and self.outputs is not self.inputs:
                record(self.outputs, self.device)
        return now

    def poll(self, core: Any, handle: int) -> bool:
        """Whether the operation is complete."""
        complete: bool = core.poll(handle)
        return complete

    def all(self, core: Any, handle: int) -> Sequence[torch.Tensor]:
        """Settle, and return the outputs. Outputs that the engine allocated are copied to new tensors on the device."""
        now = self.settle(core, handle)
        if self.outputs is not None:
            return self.outputs
        results = []
        for index in range(len(self.inputs)):
            shape, number, _ = core.output_info(handle, index)
            result = torch.empty(shape, dtype=_DTYPES[number], device=self.device)
            core.copy_output(handle, index, reference(result, now))
            results.append(result)
        return results


def stream_of(device: torch.device) -> Any:
    """The calling thread's current stream of a device, as an object of torch; None if torch's module for the device has
    no streams."""
    current = getattr(getattr(torch, device.type, None), "current_stream", None)
    return None if current is None else current(device.index)


def come_after(stream: Any, tensor: torch.Tensor) -> None:
    """Let the calling thread's current stream wait for `stream`, whose work completes `tensor`."""
    now = stream_of(tensor.device)
    if now != stream:
        now.wait_stream(stream)
        record([tensor], tensor.device)


def record(tensors: Sequence[torch.Tensor], device: torch.device) -> None:
    """Let PyTorch know that the calling thread's current stream of `device` uses the memory of these tensors."""
    stream = stream_of(device)
    for tensor in tensors:
        try:
            tensor.record_stream(stream)
        except (NotImplementedError, RuntimeError):
            return  # memory of this device does not belong to streams
