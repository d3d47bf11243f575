"""What hvd-core is told about this backend before it loads anything, and whether it can work on this machine.

Imported by ``hvd plugin list`` and the like in processes that will never use the backend: nothing heavy here.
"""

from __future__ import annotations

from pathlib import Path

from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable

_LIB = Path(__file__).resolve().parent / "lib"


def describe() -> BackendDescriptor:
    """The entry point."""
    return BackendDescriptor(
        name="nccl",
        abi=(1, 0),
        devices=("cuda",),
        provides=frozenset({"device", "comm"}),
        library=_LIB / "libhvd_backend_nccl.so",
        requires=("an NVIDIA GPU and its driver", "libnccl.so.2 >= 2.19"),
        probe=probe,
    )


def probe() -> Available | Unavailable:
    """Whether there are a driver, a device and NCCL. Creates no context and fixes no visibility."""
    from hvd_backend_nccl.looking import look

    return look()
