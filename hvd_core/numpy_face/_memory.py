"""Arrays in memory that the ranks of a host share. Any thread may call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_core._frontend.element_types import NUMBERS
from hvd_core._frontend.shared_memory import shared_array
from hvd_core._runtime.current_job import engine
from hvd_core._runtime.process_sets import ProcessSet
from hvd_core.numpy_face._handles import failed, number_of


def empty(
    shape: int | Sequence[int], dtype: Any = np.float64, process_set: ProcessSet | None = None
) -> np.ndarray:
    """A new array of arbitrary values, in memory that the ranks of the set share where they can.

    ``allreduce_()`` of such arrays reduces straight between the ranks' memory, without a copy. Everything else works as
    with any array, also where another rank passes an ordinary array. All ranks of the set call it, with one shape and
    dtype. Memory that no rank uses any more is given back at the next call, and at the end of the process set.

    The array may outlive the job. A forked child does not have its memory, and must not touch it. Where the ranks
    cannot share memory, the array is an ordinary one, and a warning has the reason.

    Raises:
        ValueError: before init(), for a dtype that the engine does not move, or for a shape of more bytes than an address
            space holds. HorovodInternalError: the ranks ask for different arrays, a rank has no memory for the array, or
            the job ends.
    """
    try:
        of_type = np.dtype(dtype)
        if of_type.name not in NUMBERS:
            raise ValueError(f"hvd.empty: the engine moves no arrays of type {of_type.name}.")
        dimensions = [int(n) for n in ([shape] if np.isscalar(shape) else shape)]
        if any(not 0 <= n < 1 << 63 for n in dimensions):
            raise ValueError(f"hvd.empty: {dimensions} is not the shape of an array.")
        number = number_of(process_set)
    except BaseException as error:
        failed("create_window", "create_window", None, process_set, error)
        raise
    array, why = shared_array(engine(), dimensions, NUMBERS[of_type.name], number)
    if why:
        warnings.warn(f"hvd.empty: an ordinary array, since {why}.", stacklevel=2)
    return array.view(of_type)
