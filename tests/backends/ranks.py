"""Runs a function as several ranks, each with a communicator: in processes or in threads of this one."""

import multiprocessing
import os
import signal
import threading
import time
import traceback

from table_driver import Backend, Comm

FORK = multiprocessing.get_context("fork")


def _process(pipe, library, store, rank, size, options, enter, body, args):
    try:
        if enter:
            enter(rank)
        comm = Comm(Backend(library, store, options), rank, size)
        result = body(comm, *args)
        if comm.handle is not None:
            comm.destroy()
        pipe.send((True, result))
    except BaseException as error:
        pipe.send((False, f"rank {rank}: {error}\n{traceback.format_exc()}"))
    finally:
        pipe.close()
        os._exit(0)


def in_processes(library, store, size, body, *args, options=None, timeout=60, lost=(), enter=None):
    """body(comm, *args) on `size` forked ranks; results in rank order. Ranks in `lost` may have none.

    enter(rank) is called first in each process, before the library is opened.
    """
    workers = []
    for rank in range(size):
        mine, theirs = FORK.Pipe()
        p = FORK.Process(
            target=_process, args=(theirs, library, store, rank, size, options, enter, body, args)
        )
        p.start()
        theirs.close()
        workers.append((p, mine))
    end = time.monotonic() + timeout
    results, failures = [], []
    try:
        for rank, (_, pipe) in enumerate(workers):
            try:
                if not pipe.poll(max(0.0, end - time.monotonic())):
                    failures.append(f"rank {rank}: no result in {timeout} s")
                    continue
                good, value = pipe.recv()
                (results if good else failures).append(value)
            except EOFError:
                results.append(None)
                if rank not in lost:
                    failures.append(f"rank {rank} died")
    finally:
        for p, _ in workers:
            p.join(0.5)
            if p.is_alive():
                os.kill(p.pid, signal.SIGKILL)
                p.join()
    assert not failures, "\n".join(failures)
    return results


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
