"""Runs a function as several ranks, each with a communicator: in processes or in threads of this one."""

import threading
import time
import traceback

from forked import ForkedRanks

from table_driver import Backend, Comm


def in_processes(library, store, size, body, *args, options=None, timeout=60, lost=(), enter=None, hosts=()):
    """body(comm, *args) on `size` forked ranks; results in rank order. Ranks in `lost` need not return a result.

    enter(rank) is called first in each process, before the library is opened. hosts: of each rank; all on one if empty.
    """

    def work(rank, _):
        if enter:
            enter(rank)
        comm = Comm(Backend(library, store, options), rank, size, hosts=hosts)
        result = body(comm, *args)
        if comm.handle is not None:
            comm.destroy()
        return result

    with ForkedRanks(size, work) as ranks:
        return ranks.results(timeout, lost)


def in_threads(library, store, size, body, *args, options=None, timeout=60):
    """The same with threads of this process; each rank has a communicator of its own."""
    backend = Backend(library, store, options)
    results, failures = [None] * size, []

    def work(rank):
        try:
            comm = Comm(backend, rank, size)
            results[rank] = body(comm, *args)
            if comm.handle is not None:
                comm.destroy()
        except BaseException as error:
            failures.append(f"rank {rank}: {error}\n{traceback.format_exc()}")

    threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in range(size)]
    for t in threads:
        t.start()
    end = time.monotonic() + timeout
    for t in threads:
        t.join(max(0.0, end - time.monotonic()))
    assert not any(t.is_alive() for t in threads), f"a rank hangs after {timeout} s; others said: {failures}"
    assert not failures, "\n".join(failures)
    return results
