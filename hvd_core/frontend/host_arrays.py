"""NumPy arrays of the engine's memory. NumPy is imported at the first use. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_core.current_job import engine

if TYPE_CHECKING:
    import numpy as np


class _Capsule:
    """The object that np.from_dlpack() takes, around a tensor that the engine allocated."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def output_array(core: Any, handle: int, index: int) -> np.ndarray:
    """The output of a request that the engine allocated in host memory, without a copy.

    Args:
        core: the engine.
        handle: of a request that is done: an allgather or an alltoall.
        index: of the tensor in the request.
    """
    import numpy as np

    return np.from_dlpack(_Capsule(core.output(handle, index)))


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
        # After Ctrl-C the request is still under way and needs its memory.
        if core.poll(handle):
            core.release(handle)
