"""Memory that the ranks of a host share, for the tensors of any front end. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_core._runtime.host_arrays import output_array

if TYPE_CHECKING:
    import numpy as np


def shared_array(core: Any, shape: Sequence[int], dtype: int, process_set: int) -> tuple[np.ndarray, str]:
    """An array in memory that the ranks share, and why it is an ordinary one ("" if the ranks share it).

    A collective call of all ranks of the set. The reason is "" too in a set of one rank, which has no other to share
    with.

    Args:
        core: the engine.
        shape, dtype: of the array; dtype is the engine's number. Equal on all ranks.
        process_set: the engine's number of the set.
    """
    handle = core.create_window(list(shape), dtype, process_set)
    try:
        core.wait(handle)
        alone = len(core.process_sets()[process_set]) == 1
        why = "" if alone else core.no_window(handle)
        return output_array(core, handle, 0), why
    finally:
        core.release(handle)
