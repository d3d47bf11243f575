"""NumPy arrays of the engine's memory. NumPy is imported at the first use. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_core._runtime.current_job import engine

if TYPE_CHECKING:
    import numpy as np


def output_array(core: Any, handle: int, index: int) -> np.ndarray:
    """The output of a request that the engine allocated in host memory: a writable array, without a copy. Types that
    NumPy lacks come as unsigned integers of their size.

    Args:
        core: the engine.
        handle: of a request that is done: an allgather or an alltoall.
        index: of the tensor in the request.
    """
    return core.output_array(handle, index)


def gathered_integers(own: Sequence[int], name: str) -> list[int]:
    """The integers of all ranks of the job, in rank order. A collective call of all ranks.

    Args:
        own: this rank's integers, of 64 bits; their number may differ from rank to rank.
        name: of the request.
    """
    import numpy as np

    core = engine()
    handle = core.allgather([np.array(own, dtype=np.int64)], name)
    try:
        core.wait(handle)
        return output_array(core, handle, 0).tolist()
    finally:
        core.release(handle)
