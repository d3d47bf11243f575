"""What a function that horovod.spark has called may ask about its Spark task."""

from __future__ import annotations

import os

__all__ = ["get_available_devices"]


def get_available_devices() -> list[str]:
    """The addresses of the GPUs that Spark has given to the task of this rank; [] if it has given none.

    In the rank's process, CUDA numbers the devices that CUDA_VISIBLE_DEVICES names: `hvd.local_rank()` is the number of
    the first of these.
    """
    from horovod.spark._ranks import DEVICES

    return [address for address in os.environ.get(DEVICES, "").split(",") if address]
