"""The programs of these tests' ranks: one function each, named on the command line."""

import os
import sys

import numpy as np

import hvd_core
from horovod.common.basics import HorovodBasics

hvd = HorovodBasics()


def print_the_way(*then):
    """Rank 0 prints which way the data went, and the facts about MPI. For each word behind, the process is in one more
    job, with this value of HOROVOD_SIMULATED_HOSTS."""
    _print_the_way()
    for hosts in then:
        os.environ["HOROVOD_SIMULATED_HOSTS"] = hosts
        _print_the_way()


def _print_the_way():
    hvd.init()
    assert hvd_core.allreduce(np.full(3, float(hvd.rank())), op=hvd_core.Sum).tolist() == [1.0] * 3
    if hvd.rank() == 0:
        row = hvd_core.backend_report()[0]
        print("over", row.backend, row.source)
        print("threads", hvd.mpi_enabled() and hvd.mpi_threads_supported())
        print("enabled", hvd.mpi_enabled(), hvd.gloo_enabled(), hvd.mpi_built())
        with open("/proc/self/maps") as maps:
            print("loaded", "libhvd_backend_mpi" in maps.read())
    hvd.shutdown()


def print_the_way_after_mpi():
    """As print_the_way(), in a process that has finalized MPI."""
    from mpi4py import MPI

    MPI.Finalize()
    print_the_way()


def begin_twice():
    """init() twice, and a sum between; rank 0 prints which way the data went."""
    hvd.init()
    total = hvd_core.allreduce(np.full(3, float(hvd.rank()))).tolist()
    assert total == [(hvd.size() - 1) / 2] * 3
    hvd.init()
    if hvd.rank() == 0:
        print("over", hvd_core.backend_report()[0].backend)
    hvd.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
