"""The mistakes that make a job stall, each as a small program for two or three ranks. It goes on when the stall has been
reported: rank 0 appends each report to stalls.json in the folder of the call.

The functions are for living ranks (tests/hvd_core/observe/test_stalls.py) and for the page docs/reliability.md
(tests/hvd_core/observe/stall_texts.py).
"""

import ctypes
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import hvd_core as hvd
from harness.rank import await_told, meet, tell

REPORTS = "stalls.json"


def x():
    return np.ones(4, np.float32)


def reports():
    """How many reports there are."""
    path = Path(REPORTS)
    return path.read_text().count("\n") if path.exists() else 0


def until_reported(count=1):
    while reports() < count:
        time.sleep(0.02)


def after_the_report(call, count=1):
    """Calls call() in another thread when the stall has been reported; a daemon, as a failed program does not wait."""

    def wait():
        until_reported(count)
        call()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def stands_at(part):
    """Lets rank 0 go on when the main thread of this rank is at the line of stall_programs.py that is `part`."""
    lines = Path(__file__).read_text().splitlines()
    main = threading.main_thread().ident

    def stands():
        frame = sys._current_frames()[main]
        return frame.f_code.co_filename == __file__ and lines[frame.f_lineno - 1].strip() == part

    def wait():
        while not stands():
            time.sleep(0.01)
        tell("stands")

    threading.Thread(target=wait, daemon=True).start()


def a_rank_sleeps():
    if hvd.rank() == 1:
        load_data()
    hvd.allreduce(x(), name="a")


def load_data():
    while not reports():
        time.sleep(0.5)


def a_rank_is_slow():
    if hvd.rank() == 1:
        number = 0
        while number % 5000 or not reports():
            number += 1
    hvd.allreduce(x(), name="a")


def a_rank_is_inside_of_an_extension():
    """Rank 1 stays in C code that keeps Python's lock."""
    if hvd.rank() == 0:
        os.mkfifo("pipe")
        after_the_report(lambda: Path("pipe").write_bytes(b"x"))
        tell("pipe")
    else:
        await_told("pipe")
        end = os.open("pipe", os.O_RDWR)
        ctypes.PyDLL(None).read(end, ctypes.create_string_buffer(1), 1)
        os.close(end)
    hvd.allreduce(x(), name="a")


def a_rank_waits_for_a_lock():
    if hvd.rank() == 1:
        lock, held = threading.Lock(), threading.Event()

        def save():
            with lock:
                held.set()
                until_reported()

        thread = threading.Thread(target=save)
        thread.start()
        held.wait()
        stands_at("with lock:  # the main thread")
        with lock:  # the main thread
            pass
        thread.join()
    else:
        await_told("stands")
    hvd.allreduce(x(), name="a")


def a_rank_waits_for_a_thread():
    if hvd.rank() == 1:
        thread = threading.Thread(target=until_reported)
        thread.start()
        thread.join()
    hvd.allreduce(x(), name="a")


def a_rank_waits_for_a_queue():
    if hvd.rank() == 1:
        batches = queue.Queue()
        after_the_report(lambda: batches.put(None))
        batches.get()
    hvd.allreduce(x(), name="a")


def names_differ():
    rank = hvd.rank()
    after_the_report(lambda: hvd.allreduce(x(), name=f"loss.{1 - rank}"))
    hvd.allreduce(x(), name=f"loss.{rank}")
    meet("end")


def only_rank_0_calls():
    if hvd.rank() == 1:
        after_the_report(lambda: hvd.allreduce(x(), name="checkpoint"))
    if hvd.rank() == 0:
        hvd.allreduce(x(), name="checkpoint")
    hvd.allreduce(x(), name="a")


def mean(name):
    return hvd.allreduce(x(), name=name)


def a_helper_is_called_under_a_condition():
    """Only the callers' lines tell the calls apart."""
    if hvd.rank() == 1:
        after_the_report(lambda: mean("checkpoint"))
    if hvd.rank() == 0:
        mean("checkpoint")
    mean("loss")


def numbers_of_batches_differ():
    if hvd.rank() == 1:
        after_the_report(lambda: hvd.allreduce(x(), name="gradient"))
    for _ in range(4 - hvd.rank()):
        hvd.allreduce(x(), name="gradient")
    hvd.allreduce(x(), name="metric")


def numbers_of_batches_differ_without_a_metric():
    if hvd.rank() == 1:
        after_the_report(lambda: hvd.allreduce(x(), name="gradient"))
    for _ in range(4 - hvd.rank()):
        hvd.allreduce(x(), name="gradient")
    if hvd.rank() == 1:
        hvd.barrier()
    else:
        hvd.barrier()


def a_parameter_of_one_rank():
    if hvd.rank() == 1:
        after_the_report(lambda: [hvd.allreduce(x(), name="extra") for _ in range(2)])
    names = ["weight", "bias"] + (["extra"] if hvd.rank() == 0 else [])
    for _ in range(2):
        for handle in [hvd.allreduce_async(x(), name=name) for name in names]:
            hvd.synchronize(handle)
    meet("end")


def orders_differ():
    """Without names: the engine tells the calls apart by their kinds and counts."""
    if hvd.rank() == 0:
        after_the_report(lambda: hvd.allgather(x()))
        hvd.allreduce(x())
    else:
        after_the_report(lambda: hvd.allreduce(x()))
        hvd.allgather(x())
    meet("end")


def an_exception_is_swallowed():
    if hvd.rank() == 1:
        after_the_report(lambda: hvd.allreduce(x(), name="step"))
        try:
            hvd.allreduce(object(), name="step")
        except Exception:
            pass  # the batch is skipped
    else:
        try:
            hvd.allreduce(x(), name="step")
        except hvd.HorovodInternalError:
            hvd.allreduce(x(), name="step")  # tried again
    hvd.allreduce(x(), name="next")


def a_rank_has_joined():
    if hvd.rank() == 0:
        load_data()
    hvd.join()


def members_of_a_set():
    """Of three ranks two are members."""
    some = hvd.add_process_set([0, 2])
    if hvd.rank() == 2:
        load_data()
    if some.included():
        hvd.allreduce(x(), name="a", process_set=some)
    meet("end")


def a_message_is_not_received():
    """The first one of these ranks. Rank 2 has no part in it."""
    if hvd.rank() == 0:
        hvd.send(x(), 1)
    elif hvd.rank() == 1:
        load_data()
        hvd.recv(x(), 0)
    meet("end")


def a_set_is_added():
    if hvd.rank() == 1:
        load_data()
    hvd.add_process_set([0])


def a_rank_is_stopped():
    """By a signal, as a debugger does it."""
    if hvd.rank() == 1:
        Path("pid").write_text(str(os.getpid()))
        tell("pid")
        await_told("stop")
    else:
        await_told("pid")
        other = int(Path("pid").read_text())
        os.kill(other, signal.SIGSTOP)
        tell("stop")
        after_the_report(lambda: os.kill(other, signal.SIGCONT))
    hvd.allreduce(x(), name="a")


def half_of_a_known_batch():
    """All ranks have often submitted eight names together; now rank 1 submits four of them."""
    engine_name = [f"g{i}" for i in range(8)]

    def submit(names):
        return [hvd.allreduce_async(x(), name=name) for name in names]

    for _ in range(12):
        meet_and_wait = submit(engine_name)
        for handle in meet_and_wait:
            hvd.synchronize(handle)
    mine = engine_name if hvd.rank() == 0 else engine_name[:4]
    handles = submit(mine)
    if hvd.rank() == 1:
        after_the_report(lambda: [hvd.synchronize(h) for h in submit(engine_name[4:])]).join()
    for handle in handles:
        hvd.synchronize(handle)


def reported_again():
    """Until there are three reports."""
    if hvd.rank() == 1:
        until_reported(3)
    hvd.allreduce(x(), name="a")


def the_job_ends():
    """The texts of the errors with which it ends: rank 0 waits, rank 1 does not call."""
    try:
        if hvd.rank() == 1:
            while not Path("ended").exists():
                time.sleep(0.02)
        hvd.allreduce(x(), name="a")
    except hvd.HorovodInternalError as error:
        Path("ended").touch()
        return str(error)
    return ""
