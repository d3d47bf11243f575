"""What ``torch.gcu`` is: the functions that torch and its users expect of an accelerator's module.

Streams and events are torch's own (``torch.Stream``, ``torch.Event``), made for this device.
"""

import ctypes
from typing import Any

import torch

import torch_gcu

_Device = torch.device | str | int | None


def why_unavailable() -> str:
    """Empty if there are devices; else the reason."""
    return torch_gcu.why_unavailable()


def is_available() -> bool:
    """Whether there is a device. Opens the vendor's library."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether devices can be used without anything more to be done."""
    return is_available()


def device_count() -> int:
    """Number of devices; 0 where the vendor's library is missing."""
    return 0 if torch_gcu.why_unavailable() else torch_gcu.extension().torch_gcu_device_count()


def _require() -> None:
    reason = torch_gcu.why_unavailable()
    if reason:
        raise RuntimeError(f"torch.gcu: {reason}")


def _index(device: _Device) -> int:
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        device = device.index
    return current_device() if device is None or device < 0 else device


def current_device() -> int:
    """Index of the calling thread's current device."""
    _require()
    return torch.accelerator.current_device_index()


def set_device(device: _Device) -> None:
    """Make a device current for the calling thread."""
    index = _index(device)
    if not 0 <= index < device_count():
        raise RuntimeError(f"torch.gcu: there is no gcu:{index}; {device_count()} device(s) were found")
    torch.accelerator.set_device_index(index)


class device:
    """Context manager: makes a device current for a block."""

    def __init__(self, device: _Device):
        self._wanted = device
        self._before = -1

    def __enter__(self) -> None:
        self._before = current_device()
        set_device(self._wanted)

    def __exit__(self, *_: Any) -> None:
        set_device(self._before)


class Stream(torch.Stream):
    """A stream of a gcu device. `gcu_stream` is the address of the vendor's stream, 0 for the default stream."""

    def __new__(cls, device: _Device = None, priority: int = 0, **kwargs: Any) -> "Stream":
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, torch.device(torch_gcu.DEVICE, _index(device)), priority=priority)

    @property
    def gcu_stream(self) -> int:
        """Address of the vendor's stream."""
        return self.native_handle or 0


def _as_stream(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


def Event(enable_timing: bool = False) -> torch.Event:
    """An event of a gcu device. (torch takes no subclass of torch.Event.)"""
    return torch.Event(torch_gcu.DEVICE, enable_timing=enable_timing)


def current_stream(device: _Device = None) -> Stream:
    """The calling thread's current stream of a device (None: of the current device)."""
    return _as_stream(torch.accelerator.current_stream(_index(device)))


def default_stream(device: _Device = None) -> Stream:
    """The default stream of a device."""
    kind = torch._C._autograd.DeviceType.PrivateUse1
    return Stream(stream_id=0, device_index=_index(device), device_type=int(kind))


def set_stream(stream: torch.Stream) -> None:
    """Make a stream current for the calling thread, and its device too."""
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream) -> torch.Stream:
    """Context manager: makes a stream current for a block."""
    return stream


def synchronize(device: _Device = None) -> None:
    """Wait until a device has done everything that it was given."""
    torch.accelerator.synchronize(_index(device))


def _memory(device: _Device) -> tuple[int, int, int]:
    numbers = (ctypes.c_int64 * 3)()
    torch_gcu.extension().torch_gcu_memory(_index(device), numbers)
    return tuple(numbers)


def memory_allocated(device: _Device = None) -> int:
    """Bytes in tensors of a device."""
    return _memory(device)[0]


def max_memory_allocated(device: _Device = None) -> int:
    """The most bytes that were in tensors of a device at one time."""
    return _memory(device)[1]


def memory_reserved(device: _Device = None) -> int:
    """Bytes taken from the vendor, those of freed tensors included."""
    return _memory(device)[2]


def empty_cache() -> None:
    """Give the memory of freed tensors back to the vendor."""
    _require()
    if torch_gcu.extension().torch_gcu_empty_cache():
        raise RuntimeError("torch.gcu: the vendor's library refused to free memory")


# Random numbers are drawn on the CPU, so that the CPU's generator is this device's generator.


def manual_seed(seed: int) -> None:
    """Nothing: torch.manual_seed() has seeded the CPU's generator."""


def manual_seed_all(seed: int) -> None:
    """Nothing: torch.manual_seed() has seeded the CPU's generator."""


def get_rng_state(device: _Device = None) -> torch.Tensor:
    """State of the CPU's generator."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: _Device = None) -> None:
    """Set the state of the CPU's generator."""
    torch.set_rng_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types that autocast may use."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    return bool(torch_gcu.extension().torch_gcu_forked())
