"""The streams and events of a type of device, for copies between device and host that do not make the host wait.

They are those of PyTorch's module for the device (torch.cuda, torch.xpu, ...). Used by `_staging`; any thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_NEEDED = ("Event", "Stream", "current_stream", "stream")

_found: dict[torch.device, "DeviceStreams | None"] = {}


def streams_of(device: torch.device) -> "DeviceStreams | None":
    """The streams of a device; None if copies of it have to wait, for want of streams, events or pinned memory."""
    try:
        return _found[device]
    except KeyError:
        pass
    module = getattr(torch, device.type, None)
    found = None
    if all(hasattr(module, name) for name in _NEEDED) and _pins_memory_for(device.type):
        found = DeviceStreams(module, device)
    return _found.setdefault(device, found)


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

    def let_wait(self, stream: Any, event: Any) -> None:
        """Let the work that `stream` is given from now on wait for `event`."""
        stream.wait_event(event)

    @contextmanager
    def copying_after(self, event: Any) -> Iterator[Any]:
        """Make the stream for copies current, whose work waits for `event`. Yields the stream."""
        with self._module.stream(self._side):
            self._side.wait_event(event)
            yield self._side
