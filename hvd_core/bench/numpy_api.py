"""The alternatives that need no framework: hvd-core's NumPy API, and mpi4py. On ranks only, one thread."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hvd_core.bench._conductor import Unavailable
from hvd_core.bench.alternative import Alternative, Bound, Call, Place, horovod_call, host_dtype


def _array(call: Call, elements: int) -> np.ndarray:
    if call.dtype == "bfloat16":
        raise Unavailable("NumPy has no bfloat16")
    return np.zeros(elements, host_dtype(call.dtype))


class NumpyApi(Alternative):
    """hvd_core's functions on NumPy arrays: the engine and its backends without a framework."""

    title = "hvd_core, NumPy arrays"
    host_memory_only = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import hvd_core as hvd

        if not hvd.is_initialized():
            hvd.init()
        self.hvd = hvd

    def bind(self, call: Call) -> Bound:
        array = _array(call, call.sent(self.place.size))
        kept = [array]
        run = horovod_call(self.hvd, call, array)

        def keep() -> None:
            kept[0] = run()

        return Bound(keep, partial(np.copyto, array), lambda: kept[0])

    def barrier(self) -> None:
        self.hvd.barrier()

    def close(self) -> None:
        self.hvd.shutdown()


class Mpi4py(Alternative):
    """mpi4py's functions for buffers on the MPI that it was built for."""

    title = "mpi4py, NumPy arrays"
    launcher = "mpirun"
    over_backends = False
    host_memory_only = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        from mpi4py import MPI

        self.mpi: Any = MPI
        self.comm: Any = MPI.COMM_WORLD
        if self.comm.size != place.size:
            raise Unavailable(
                f"MPI has {self.comm.size} ranks and the job {place.size}: start it with this MPI's mpirun"
            )

    @classmethod
    def needs(cls) -> list[tuple[str, str]]:
        return [("mpi4py", "pip install mpi4py, and an MPI")]

    def bind(self, call: Call) -> Bound:
        MPI, comm = self.mpi, self.comm
        if call.op == "avg":
            raise Unavailable("MPI has no average")
        whole = _array(call, call.elements)
        share = call.elements // self.place.size
        mine = slice(self.place.rank * share, (self.place.rank + 1) * share)
        op: Any = getattr(MPI, call.op.upper(), None)  # None for collectives that do not reduce
        sent, got = _array(call, call.sent(self.place.size)), whole
        if call.collective == "broadcast":
            if not call.in_place:
                raise Unavailable("MPI broadcasts in place only")
            return Bound(partial(comm.Bcast, whole, call.root), partial(np.copyto, whole), lambda: whole)
        source = MPI.IN_PLACE if call.in_place else sent
        if call.in_place:
            sent = whole[mine] if call.collective == "allgather" else whole
        run = {
            "allreduce": lambda: comm.Allreduce(source, whole, op),
            "allgather": lambda: comm.Allgather(source, whole),
            "alltoall": lambda: comm.Alltoall(source, whole),
        }.get(call.collective)
        if run is None:  # reducescatter
            if call.in_place:
                got = whole[:share]
                return Bound(
                    lambda: comm.Reduce_scatter_block(source, whole, op),
                    partial(np.copyto, whole),
                    lambda: got,
                )
            got = _array(call, share)
            run = partial(comm.Reduce_scatter_block, sent, got, op)
        return Bound(run, partial(np.copyto, sent), lambda: got)

    def barrier(self) -> None:
        self.comm.Barrier()
