"""A rank of the MPI alternatives: mpi4py's Allreduce in place, under the launcher of its own wheel."""

from __future__ import annotations

from harness.rank import Alternative, env_rank, pin, serve

pin(env_rank()[0])

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402


class Mpi(Alternative):
    def __init__(self) -> None:
        self.rank, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        super().__init__()

    def bind(self, array: np.ndarray, options: dict):
        allreduce, buffer = MPI.COMM_WORLD.Allreduce, [array, MPI.FLOAT]
        return lambda: allreduce(MPI.IN_PLACE, buffer)


if __name__ == "__main__":
    serve(Mpi())
