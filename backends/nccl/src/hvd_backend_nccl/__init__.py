"""The description of this backend, and a probe that tells whether it can work on this machine.

A job that uses the backend imports this module before any framework: keep it light.
"""

from __future__ import annotations

from pathlib import Path

from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable

_LIB = Path(__file__).resolve().parent / "lib"


def describe() -> BackendDescriptor:
    """The entry point."""
    return BackendDescriptor.from_file(
        Path(__file__).with_name("nccl.hvd.toml"),
        library=_LIB / "libhvd_backend_nccl.so",
        requires=("an NVIDIA GPU and its driver", "libnccl.so.2 >= 2.19"),
        probe=probe,
    )


def probe() -> Available | Unavailable:
    """Are there a driver, a device and NCCL? Creates no context; CUDA_VISIBLE_DEVICES may still be set later."""
    from hvd_backend_nccl.looking import look

    return look()
