"""The table before, at and after the end of a job: every call gets exactly one done(), soon, and of the right kind."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
import native_table as nt
from harness import launch, pids_of, run_to_the_end
from harness.rank import await_asleep, ignore_the_launcher
from hvd_core._runtime import runtime
from hvd_core.backends import PythonBackend, PythonCommunicator


def submit(table, name, **options):
    return table.submit(nt.ALLREDUCE, [np.ones(3)], [np.empty(3)], name, **options)


def refused(table, how, text):
    """Every operation is refused in this way, with this text."""
    for verb in ("submit", "run"):
        for op in range(7):
            p = table.call(verb, op, [np.ones(3)], [np.ones(3)], "x")
            assert (p.times, p.status) == (1, how), (verb, op, p.times, p.status, p.message)
            assert text in p.message, p.message


def names_of_threads():
    found = []
    for t in os.listdir("/proc/self/task"):
        try:
            found.append(Path(f"/proc/self/task/{t}/comm").read_text().strip())
        except OSError:
            pass  # it has ended meanwhile
    return found


@pytest.mark.ranks(2)
def test_frontend_without_an_engine():
    rank = hvd.rank()
    table = nt.Table(hvd.frontend_table())
    text = "Horovod has not been initialized; use hvd.init()."

    def check_without_engine():
        refused(table, nt.FAILED_PRECONDITION, text)
        raw = table.raw
        raw.poison(0, 0, b"x", 0, b"y")
        assert {f() for f in (raw.rank, raw.size, raw.local_rank, raw.local_size)} == {-1}
        assert {raw.process_set_rank(0), raw.process_set_size(0), raw.scattered_rows(3, 0)} == {-1}
        assert raw.serves(b"cpu") == -1
        end = time.monotonic() + 20  # a thread that has been joined may still be listed
        while left := [name for name in names_of_threads() if "hvd-" in name]:
            assert time.monotonic() < end, left
            time.sleep(0.001)

    for _ in range(3):  # the table outlives the engines
        x = np.full(4, rank + 1.0)
        table.submit(nt.ALLREDUCE, [x], [x], "again").ok()
        assert list(x) == [3] * 4
        hvd.shutdown()
        check_without_engine()
        hvd.init()


@pytest.mark.ranks(2)
def test_frontend_in_a_fork():
    rank = hvd.rank()
    table = nt.Table(hvd.frontend_table())
    stop = threading.Event()

    def work():  # holds the table's locks at any moment
        while not stop.is_set():
            table.raw.rank()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    pending = submit(table, "pending") if rank == 0 else None
    for _ in range(20):
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            refused(table, nt.FAILED_PRECONDITION, "fork")
            assert table.raw.rank() == table.raw.size() == -1
            table.raw.poison(0, 0, b"pending", 0, b"from a child")
            os._exit(7)
        assert os.waitpid(child, 0)[1] == 7 << 8
    stop.set()
    (pending or submit(table, "pending")).ok()


@pytest.mark.ranks(3)
def test_frontend_calls_pending_at_a_shutdown():
    rank = hvd.rank()
    table = nt.Table(hvd.frontend_table())
    calls = [submit(table, f"own.{rank}.{k}", urgent=k % 2 == 0) for k in range(50)]
    calls += [submit(table, "nearly") for _ in range(rank < 2)]  # the last rank is missing
    runs, begun = [], threading.Event()

    def work():
        begun.set()
        runs.append(table.run(nt.ALLREDUCE, [np.ones(3)], [np.empty(3)], f"run.{rank}"))

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    hvd.barrier()  # all ranks have submitted their pending calls
    if rank == 1:
        await_asleep(thread.native_id)  # the call of the thread is made
    else:
        calls[0].result(20)  # the call reports that rank 1 has left
        assert "rank 1" in calls[0].message and "was the first to leave" in calls[0].message
        refused(table, nt.UNKNOWN, "Horovod has been shut down.")  # there is an engine, but no job
    hvd.shutdown()
    thread.join()
    for p in calls + runs:
        assert (p.times, p.status) == (1, nt.UNKNOWN), (p.times, p.status, p.message)
        assert p.message.startswith("Horovod has been shut down."), p.message


@pytest.mark.ranks(2)
def test_frontend_calls_from_many_threads_at_a_shutdown():
    table = nt.Table(hvd.frontend_table())
    for _ in range(4):
        calls = [[] for _ in range(4)]

        def work(number):
            k = 0
            while not calls[number] or calls[number][-1].status not in (nt.UNKNOWN, nt.FAILED_PRECONDITION):
                verb = ("submit", "run")[number % 2]
                x = np.ones(4)
                p = table.call(verb, nt.ALLREDUCE, [x], [x], f"{number}.{k}")
                calls[number].append(p)
                if k % 5 == 4 or verb == "run":
                    p.result(20)
                k += 1

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        end = time.monotonic() + 40
        while not any(p.status == nt.OK for list_ in calls for p in list_):
            assert time.monotonic() < end, "no call succeeds"
            time.sleep(0.01)
        hvd.barrier()  # on the other rank too
        time.sleep(0.2)
        hvd.shutdown()
        for p in [p for list_ in calls for p in list_ if p.status is not None]:
            assert p.times == 1
        for t in threads:
            t.join()
        found = {p.status for list_ in calls for p in list_}
        assert all(p.times == 1 for list_ in calls for p in list_)
        assert found <= {nt.OK, nt.UNKNOWN, nt.FAILED_PRECONDITION} and nt.OK in found, found
        hvd.init()


@pytest.mark.ranks(2)
def test_frontend_shutdown_from_a_done():
    table = nt.Table(hvd.frontend_table())
    ended = threading.Event()
    p = submit(table, "last", then=lambda p: (hvd.shutdown(), ended.set()))
    assert ended.wait(20) and p.ok().times == 1
    refused(table, nt.FAILED_PRECONDITION, "not been initialized")
    hvd.init()
    submit(table, "first").ok()


def _a_peer_is_killed():
    rank = hvd.rank()
    table = nt.Table(hvd.frontend_table())
    ignore_the_launcher()
    calls = [submit(table, "together" if rank < 2 else "apart"), submit(table, f"own.{rank}", urgent=True)]
    print("pid", rank, os.getpid(), flush=True)
    if rank == 1:
        signal.pause()
    runs = [table.run(nt.ALLREDUCE, [np.ones(3)], [np.ones(3)], "missing")]
    for p in calls[1:] + runs:
        p.result(20)
        assert (p.times, p.status) == (1, nt.UNKNOWN), (p.status, p.message)
        print("heard:", p.message, flush=True)
    refused(table, nt.UNKNOWN, "died")
    assert all(p.result(5).times == 1 for p in calls)
    print("all told", flush=True)


def test_frontend_kill_of_a_peer(tmp_path):
    job = launch(3, _a_peer_is_killed, folder=tmp_path)
    pids, text = pids_of(job, 3)
    time.sleep(0.3)
    os.kill(pids[1], signal.SIGKILL)
    output, _ = job.communicate(timeout=100)
    heard = [line for line in (text + output).splitlines() if "heard:" in line]
    assert len(heard) == 4 and all(re.search(r"rank 1 \(host .+\) died", line) for line in heard), (
        text + output
    )
    # The launcher may end the survivors before they have finished.
    assert job.returncode != 0


def _a_program():
    x = np.ones(3)
    nt.Table(hvd.frontend_table()).run(nt.ALLREDUCE, [x], [x]).ok()
    hvd.shutdown()


def test_frontend_program_ends_well():
    run_to_the_end(2, _a_program)


begun, go_on = threading.Event(), threading.Event()


class Stubborn(PythonCommunicator):
    def __init__(self, key, store, ranks, hosts, rank, size, deadline):
        pass

    def allreduce(self, inputs, outputs, op, prescale, postscale, call):
        begun.set()
        go_on.wait(20)

    broadcast = allgather = allreduce

    def abort(self):
        pass

    def destroy(self):
        pass


class StubbornBackend(PythonBackend):
    name = "stubborn"
    communicator = Stubborn


@pytest.mark.ranks(1, init=None)
def test_frontend_says_that_memory_lingers():
    """A backend whose library continues after the abort: the result tells the owner of the memory."""
    hvd.init(backend=StubbornBackend)
    table = nt.Table(hvd.frontend_table())
    p = submit(table, "held")
    assert begun.wait(20)
    runtime.engine().abort("enough")
    p.result(20)
    assert (p.times, p.status, p.lingers) == (1, nt.UNKNOWN, 1), (p.status, p.lingers)
    assert "enough" in p.message, p.message
    go_on.set()
    hvd.shutdown()
