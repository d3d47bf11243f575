"""HOROVOD_CHECK_CONSISTENCY=1: a warning if ranks begin to train with different weights.

A front end announces a weight before it reduces the weight's gradient for the first time. The engine sends a digest
with that request, which needs no further message, and the coordinator compares. A difference fails nothing.

Any thread that holds the GIL.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from hvd_core._runtime import current_job
from hvd_core.errors import HorovodInternalError

_log = logging.getLogger("horovod")


def checked() -> bool:
    """Whether front ends shall announce weights. False before init()."""
    job = current_job.current()
    return job is not None and job.engine.checks_consistency


def announce(
    name: str, weights: Iterable[tuple[str, Callable[[], Any]]], remedy: str, process_set: int = 0
) -> None:
    """Announce the weights whose gradients the next request of a name reduces. The first time per job and name; later
    calls do nothing. Raises nothing: a weight that cannot be read is left out.

    Args:
        name: of the request, with its prefix, such as "allreduce.layer1.weight".
        weights: for each its name, and a function that returns the values as an array of NumPy; None: the values are not
            known here.
        remedy: the line of the user's program that gives all ranks the same weights.
        process_set: the number of the set that reduces.
    """
    job = current_job.current()
    if job is None or (process_set, name) in job.announced:
        return
    job.announced.add((process_set, name))
    digests = []
    for weight, read in weights:
        try:
            values = read()
            if values is not None:
                digests.append((weight, values.size, digest(values)))
        except Exception as error:  # of the framework; the training must not fail by its check
            _log.warning("horovod: HOROVOD_CHECK_CONSISTENCY: %s cannot be compared: %s", weight, error)
    if digests:
        with suppress(
            HorovodInternalError, ValueError
        ):  # the job or the set has ended: the request will say so
            job.engine.announce_weights(name, digests, remedy, process_set)


def digest(values: np.ndarray) -> int:
    """64 bits that differ, for all practical purposes, if any bit of the values, their type or their shape differs."""
    kind = hashlib.blake2b(f"{values.dtype.name}{values.shape}".encode(), digest_size=8)
    kind.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return int.from_bytes(kind.digest(), "little")
