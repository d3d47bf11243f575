"""A signal handler that raises (a watchdog's TimeoutError, sys.exit) ends a wait and not the operation: what the operation
uses stays, what it took from the other ranks is found again, and nothing is left over in the end."""

import gc
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
from harness import run_to_the_end
from harness.rank import await_told, interrupted, is_told, tell
from hvd_core import numpy_api
from hvd_core._runtime import runtime

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


@pytest.mark.ranks(2)
def test_the_array_of_an_interrupted_call_is_kept_until_the_operation_ends():
    if hvd.rank() == 0:
        array = np.full(5000, 7.0)
        alive = weakref.ref(array)
        interrupted(lambda: hvd.allreduce_(array, name="x", op=hvd.Sum))
        del array
        gc.collect()
        assert alive() is not None, "the engine writes to memory that was freed"
        tell("interrupted")
        hvd.barrier()
        hvd.allreduce(np.ones(1), name="y")  # a submission lets go of ended operations
        assert alive() is None, "kept after the end of the operation"
    else:
        await_told("interrupted")
        assert hvd.allreduce(np.ones(5000), name="x", op=hvd.Sum)[0] == 8
        hvd.barrier()
        hvd.allreduce(np.ones(1), name="y")


@pytest.mark.ranks(2)
def test_a_handle_that_is_released_too_early_keeps_its_arrays():
    engine = runtime.engine()
    if hvd.rank() == 0:
        array = np.full(5000, 7.0)
        alive = weakref.ref(array)
        engine.release(engine.allreduce(array, array, "x", 1, 1.0, 1.0, 0))
        del array
        assert alive() is not None
        tell("released")
    else:
        await_told("released")
        array = np.ones(5000)
        engine.allreduce(array, array, "x", 1, 1.0, 1.0, 0, True)
    hvd.barrier()
    hvd.barrier()
    if hvd.rank() == 0:
        assert alive() is None


@pytest.mark.ranks(2)
def test_arrays_of_operations_that_were_pending_at_shutdown_are_freed():
    array = np.ones(1000)
    alive = weakref.ref(array)
    handle = hvd.allreduce_async_(array, name=f"pending.{hvd.rank()}")
    assert not hvd.poll(handle)
    del array
    hvd.barrier()
    hvd.shutdown()
    gc.collect()
    assert alive() is None
    assert not numpy_api._results
    hvd.init()


@pytest.mark.ranks(2, init=None)
def test_a_child_that_is_forked_during_init_can_end():
    if int(os.environ["HOROVOD_RANK"]) == 0:
        thread = threading.Thread(target=hvd.init)
        thread.start()
        while runtime._lock.acquire(blocking=False):  # until init() has begun
            runtime._lock.release()
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            hvd.shutdown()  # as the interpreter does at its end
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the child waits for a thread that it does not have"
        tell("forked")
        thread.join()
    else:
        await_told("forked")
        hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 2


def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.ranks(2)
def test_shutdown_in_a_handler_that_interrupts_shutdown():
    """shutdown() waits for operations that were agreed on: rank 1 is stopped in the middle of them."""
    calls = []
    other = runtime.world().pids[1]

    def end(*_):
        os.kill(other, signal.SIGCONT)
        hvd.shutdown()
        calls.append(hvd.is_initialized())

    before = signal.signal(signal.SIGALRM, end)
    for attempt in itertools.count():
        arrays = [np.ones(1 << 20, np.float32) for _ in range(40)]
        handles = [hvd.allreduce_async_(array, name=str(i)) for i, array in enumerate(arrays)]
        hvd.synchronize(handles[0])
        if hvd.rank() == 0:
            while not is_stopped(other):
                time.sleep(0.001)
            # On a busy machine rank 1 may be stopped when it has carried out all of them: then they come to an end here.
            if not any(hvd.poll(handles[-1]) or time.sleep(0.002) for _ in range(100)):
                break
            tell(f"too late {attempt}")
            os.kill(other, signal.SIGCONT)
        else:
            os.kill(other, signal.SIGSTOP)
            if not is_told(f"too late {attempt}"):
                break
        for handle in handles[1:]:
            hvd.synchronize(handle)
    if hvd.rank() == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        hvd.shutdown()
        assert calls == [False], calls
    else:
        hvd.shutdown()
    signal.signal(signal.SIGALRM, before)
    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 2


def wait_in_daemon_threads():
    """The program ends while many daemon threads wait in a collective that no other rank calls."""
    arrays = [np.ones(100, np.float32) for _ in range(30)]
    waiting = threading.Semaphore(0)

    def wait(k):
        waiting.release()
        hvd.allreduce_(arrays[k], name=f"{hvd.rank()}.{k}")

    threading.excepthook = lambda _: None  # each thread ends with the job's end
    for k in range(len(arrays)):
        threading.Thread(target=wait, args=(k,), daemon=True).start()
    for _ in arrays:
        waiting.acquire()
    hvd.barrier()
    sys.setswitchinterval(100)  # so that the threads come too late to get Python's lock


def test_daemon_threads_in_a_collective_at_the_end_of_the_interpreter():
    out = run_to_the_end(2, wait_in_daemon_threads)
    assert "terminate called" not in out, out
