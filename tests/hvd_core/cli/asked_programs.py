"""What ranks do while `hvd doctor` asks them, for test_cli_running.py. Rank 0 runs the command; another rank waits."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np

import hvd_core as hvd
from harness import rank as ranks
from hvd_core._runtime import current_job

SECONDS = 60.0


def doctor(*options):
    """(exit code, output, errors) of `hvd doctor`."""
    done = subprocess.run(
        [sys.executable, "-m", "hvd_core._cli", "doctor", *map(str, options)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout, done.stderr


def until(found, *options):
    """The document of `hvd doctor --json` as soon as found(document) is true."""
    end = time.monotonic() + SECONDS
    while True:
        code, output, errors = doctor(*options, "--json")
        assert code == 0, errors
        document = json.loads(output)
        if found(document):
            return document
        assert time.monotonic() < end, document


def pid_of(rank):
    return current_job.get().world.pids[rank]


def has_report(document):
    return document["report"] is not None


def one_rank_waits():
    """Rank 0 asks while rank 1 waits for it. Returns the texts for the job and for rank 1."""
    if hvd.rank() == 0:
        until(has_report, "--job", os.getpid())
        result = doctor("--job", os.getpid()), doctor("--pid", pid_of(1))
        hvd.allreduce(np.ones(3), name="loss")
        return result
    return hvd.allreduce(np.ones(3), name="loss").tolist()


def holds_pythons_lock():
    """Rank 1 is inside of C code that keeps Python's lock until rank 0 has asked."""
    hvd.allreduce(np.ones(3), name="before")
    path = str(ranks.folder / "gate")
    if hvd.rank() == 0:
        os.mkfifo(path)
        ranks.tell("gate")
        ranks.await_told("near")
        found = until(lambda d: d["lock_held"], "--pid", pid_of(1))
        os.close(os.open(path, os.O_WRONLY))
        hvd.barrier()
        return found
    ranks.await_told("gate")
    ranks.tell("near")
    in_code_that_keeps_the_lock(path)
    hvd.barrier()


def in_code_that_keeps_the_lock(path):
    # Opening a FIFO returns when it has a writer. PyDLL keeps Python's lock meanwhile.
    os.close(ctypes.PyDLL(None).open(path.encode(), os.O_RDONLY))


def several_threads():
    """Rank 1's main thread waits for a lock; another thread waits in an operation."""
    if hvd.rank() == 0:
        found = until(lambda d: d["waiting"] and len(d["threads"]) > 1, "--pid", pid_of(1))
        hvd.allreduce(np.ones(1), name="loss")
        return found
    lock = threading.Lock()
    with lock:
        waiter = threading.Thread(target=in_an_operation, name="trainer")
        waiter.start()
        waiter.join()


def in_an_operation():
    hvd.allreduce(np.ones(1), name="loss")


def ask_and_proceed():
    """Questions while the job computes change no result and stop no rank."""
    stop = threading.Event()
    codes = []

    def ask():
        while not stop.is_set():
            codes.append(doctor("--job", os.getpid())[0])

    asking = threading.Thread(target=ask)
    if hvd.rank() == 0:
        asking.start()
    number = 0
    while number < 200 or not is_over(codes, number):
        total = hvd.allreduce(np.full(1000, hvd.rank() + number, np.float64), name="x", op=hvd.Sum)
        assert (total == sum(range(hvd.size())) + hvd.size() * number).all()
        number += 1
    stop.set()
    if hvd.rank() == 0:
        asking.join()
        assert codes and not any(codes)


def is_over(codes, number):
    """Whether rank 0 has got two answers; decided by rank 0 for all, at the same numbers."""
    if number % 50:
        return False
    return bool(hvd.broadcast(np.array([len(codes) >= 2]), 0, name="over")[0])


def all_over_the_tree():
    """Rank 0 alone is asked: it asks the others over the control tree, as it asks ranks of other hosts."""
    if hvd.rank() == 0:
        from hvd_core._cli import doctor as jobs

        end = time.monotonic() + SECONDS
        while True:
            (own,) = [a for a in jobs.addresses() if jobs.pid_at(a) == os.getpid()]
            answer = jobs.ask(own, "job")
            if len(answer.snapshots) == hvd.size():
                break
            assert time.monotonic() < end, answer
        hvd.barrier()
        return sorted(answer.snapshots), answer.process_sets
    hvd.barrier()


def own_socket():
    """The names of this process's sockets, before shutdown() and after it."""
    from hvd_core._cli import doctor as jobs

    def own():
        return [a for a in jobs.addresses() if jobs.pid_at(a) == os.getpid()]

    before = own()
    hvd.shutdown()
    return len(before), len(own())


def in_a_forked_child():
    """A child that outlives the question holds no socket of its parent's."""
    address = next(iter(own_addresses()))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent has looked
        os._exit(0)
    os.close(reader)
    sockets = {
        os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir(f"/proc/{os.getpid()}/fd") if exists(fd)
    }
    listening = {f"socket:[{inode}]" for inode in inodes_of(address)}
    assert listening and listening <= sockets
    end = time.monotonic() + SECONDS
    try:
        while listening & {link(child, fd) for fd in os.listdir(f"/proc/{child}/fd")}:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def own_addresses():
    from hvd_core._cli import doctor as jobs

    return [a for a in jobs.addresses() if jobs.pid_at(a) == os.getpid()]


def inodes_of(address):
    # Names are any bytes, for example those of shm's sockets.
    with open("/proc/net/unix", errors="replace") as file:
        rows = [line.split() for line in file]
    return {row[6] for row in rows if row and row[-1] == f"@{address}" and row[3] == "00010000"}


def exists(fd):
    return os.path.islink(f"/proc/self/fd/{fd}")


def link(pid, fd):
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""


def fork_beside_an_ended_engine():
    """A fork while an engine that has ended is still referred to."""
    engine = current_job.engine()
    hvd.shutdown()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert engine.stopped
