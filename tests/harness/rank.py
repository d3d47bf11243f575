"""For checks that run on ranks: what a check needs to apply, errors that are expected, and waiting for each other
outside of the engine.

tell("x") and await_told("x"), or meet("x") on all ranks, are for a rank that must not go on before another has come so
far, when the engine is not to be asked. Their marks are files in the folder of the call.
"""

import functools
import os
import signal
import threading
import time
from pathlib import Path

# Set by rank_main.py for each call.
folder = Path()


class Skipped(Exception):
    """This check does not apply to this job. All ranks raise it; the text is the reason that pytest shows."""


def needs(holds=True, reason="", *, ranks=1):
    """Decorator of a check: it is skipped in jobs with fewer ranks, and where `holds` is false, for `reason`.

    `holds` is a function where the answer differs between the jobs of one process. All ranks must decide alike: job.py
    fails a check that only some ranks skip.
    """
    if not reason and holds is not True:
        raise ValueError("needs() takes the reason for which a check is skipped")

    def decorate(check):
        @functools.wraps(check)
        def applied(*arguments):
            import hvd_core

            if hvd_core.size() < ranks:
                raise Skipped(f"it takes {ranks} ranks, and this job has {hvd_core.size()}")
            if not (holds() if callable(holds) else holds):
                raise Skipped(reason)
            return check(*arguments)

        return applied

    return decorate


def expect(kind, call, *parts):
    """The text of the error of class `kind` that call() raises; each of `parts` must be in it."""
    try:
        call()
    except kind as error:
        text = str(error)
        for part in parts:
            assert part in text, f"{part!r} is not in {text!r}"
        return text
    raise AssertionError(f"{kind.__name__} was expected, nothing was raised")


def await_asleep(thread, ended=None, quiet=0.2, seconds=40):
    """True when the thread of this process (its native id) has slept for `quiet` seconds, as one does that waits for
    another rank; False when it has ended, or the event `ended` is set, before. Waiting for a processor does not count as
    sleep."""
    used, since, end = None, 0.0, time.monotonic() + seconds
    while ended is None or not ended.is_set():
        try:
            stat = (Path("/proc/self/task") / str(thread) / "stat").read_text()
        except OSError:
            return False
        now = time.monotonic()
        state, *fields = stat.rpartition(")")[2].split()
        if state != "S" or fields[10:12] != used:
            used, since = fields[10:12], now
        elif now - since >= quiet:
            return True
        assert now < end, f"thread {thread} goes on working"
        time.sleep(0.02)
    return False


def expect_ctrl_c(call):
    """Sends Ctrl-C to this process while call() waits for another rank, and expects that call() ends by it."""
    caller, ended = threading.get_native_id(), threading.Event()

    def interrupt():
        if await_asleep(caller, ended):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        expect(KeyboardInterrupt, call)
    finally:
        ended.set()
        thread.join()


class Watchdog(Exception):
    """What a program's signal handler raises; it is no error of ours."""


def bark(*_):
    """A signal handler that raises Watchdog."""
    raise Watchdog


def interrupted(call, then=lambda: None):
    """Calls call(), which waits for another rank, and interrupts it by the exception of a signal handler: when this
    thread has slept for a while, so not before the call waits. then(): is called when the signal is sent, and perhaps
    before its handler runs."""
    caller, ended = threading.get_native_id(), threading.Event()
    before = signal.signal(signal.SIGALRM, bark)

    def interrupt():
        if await_asleep(caller, ended):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
            then()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        expect(Watchdog, call)
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)


def ignore_the_launcher():
    """When a rank has failed, the launcher asks the others to end a second later: on a busy machine that may be before
    they have said what they heard."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def tell(mark):
    (folder / f"told.{mark}").touch()


def is_told(mark):
    return (folder / f"told.{mark}").exists()


def await_told(mark, seconds=40):
    end = time.monotonic() + seconds
    while not is_told(mark):
        assert time.monotonic() < end, f"no rank has told {mark!r} within {seconds} s"
        time.sleep(0.005)


def meet(mark, seconds=40):
    """Waits until all ranks have called meet(mark)."""
    import hvd_core

    tell(f"{mark}.{hvd_core.rank()}")
    for rank in range(hvd_core.size()):
        await_told(f"{mark}.{rank}", seconds)
