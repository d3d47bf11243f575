"""Runs a function as several ranks, each with a communicator: in living processes, in new ones, or in threads.

A fork of this process costs more than most checks, as a test process is large. So a function of a module runs on living
ranks (tests/harness), which open the library for each call. New processes are for ranks that die, and for ranks whose
process a test looks at: its threads, its open files, its memory.
"""

import os
import sys
import threading
import time
import traceback
from pathlib import Path

from forked import ForkedRanks
from harness.run import place_of, run_on_ranks
from table_driver import Backend, Comm

# Of the living job: as many as any usual test needs, so that tests with fewer ranks share it.
LIVING = 5
START_RANKS = Path(__file__).with_name("start_ranks.py")


def in_living_processes(library, store, size, body, *args, options=None, timeout=60, hosts=(), env=None):
    """body(comm, *args) on `size` living ranks; results in rank order. The arguments and results are pickled.

    hosts: of each rank; all on one if empty. env: variables of the ranks for this call alone.
    """
    ranks = max(size, LIVING)
    call = (place_of(body), str(library), str(store), size, args, options, tuple(hosts))
    outcome = run_on_ranks(
        ranks,
        on_this_rank,
        *call,
        env=env,
        init=None,
        timeout=timeout,
        command=[sys.executable, str(START_RANKS), str(ranks)],
    )
    return outcome.results[:size]


def on_this_rank(place, library, store, size, args, options, hosts):
    """The part of in_living_processes() that a rank executes. Ranks beyond `size` have nothing to do."""
    from harness.rank_main import find_function

    rank = int(os.environ["HOROVOD_RANK"])
    if rank >= size:
        return None
    return _with_communicator(library, store, rank, size, find_function(*place), args, options, hosts)


def _with_communicator(library, store, rank, size, body, args, options, hosts):
    comm = Comm(Backend(library, store, options), rank, size, hosts=hosts)
    result = body(comm, *args)
    if comm.handle is not None:
        comm.destroy()
    return result


def in_processes(library, store, size, body, *args, options=None, timeout=60, lost=(), enter=None, hosts=()):
    """body(comm, *args) on `size` ranks that are forked for this call; results in rank order.

    Ranks in `lost` need not return a result. enter(rank) is called first in each process, before the library is opened.
    """

    def work(rank, _):
        if enter:
            enter(rank)
        return _with_communicator(library, store, rank, size, body, args, options, hosts)

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
