"""Operations back to back while another thread aborts: what all backends of host memory have in common."""

import threading
import time

import numpy as np

from abi_ctypes import ABORTED, ALLREDUCE, AVG
from table_driver import BackendFailure


def busy_abort(comm, told):
    """How many were completed. Every one either completes or fails as a whole: with ABORTED on rank 0, whose other thread
    aborts, and with `told` on its peers."""
    a = np.ones(200_000, np.float32)

    def abort():
        for r in range(comm.size):
            comm.await_told(f"busy.{r}")
        time.sleep(0.3)
        comm.abort()

    aborter = threading.Thread(target=abort)
    if comm.rank == 0:
        aborter.start()
    done = 0
    try:
        while True:
            comm.run(ALLREDUCE, [a], [a], op=AVG)
            done += 1
            if done == 1:
                comm.tell(f"busy.{comm.rank}")
            assert (a == 1).all()
    except BackendFailure as error:
        assert error.code == (ABORTED if comm.rank == 0 else told), str(error)
    if comm.rank == 0:
        aborter.join()  # it may still be inside abort, and destroy comes next
    return done
