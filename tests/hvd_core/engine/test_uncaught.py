"""An exception that ends one rank's program is the cause that the others report; the program's own hooks are kept."""

import subprocess
import sys
import threading
import time

import numpy as np

import horovod
import hvd_core as hvd
from harness import run_to_the_end
from harness.rank import expect, ignore_the_launcher, is_told, tell
from hvd_core._runtime import runtime
from launchers import program_words
from lone_programs import raise_at_a_prompt

HEARD = "Horovod has been shut down. This was caused by an exception on rank 1: "


def _rank_0_waits():
    """Rank 0 waits for rank 1, which never comes."""
    if hvd.rank() == 0:
        ignore_the_launcher()
        text = expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(3), name="alone"), "rank 1")
        print("heard:", text, flush=True)
        print("after the traceback:", is_told("the traceback"), flush=True)
        raise SystemExit(0)


def step():
    raise ValueError("bad batch\nof two lines")


def _fails_under_a_hook_of_its_own():
    def hook(kind, error, trace):
        print("own hook saw", kind.__name__, flush=True)
        before(kind, error, trace)
        tell("the traceback")

    before, sys.excepthook = sys.excepthook, hook
    runtime.shutdown()
    runtime.init()  # the hook is there already
    assert sys.excepthook is not hook
    _rank_0_waits()
    # A thread that goes on holds up the interpreter's exit: the other rank hears of the exception before.
    threading.Thread(target=time.sleep, args=(1.5,)).start()
    step()


def test_an_exception_is_the_cause_on_the_others(tmp_path):
    output = run_to_the_end(2, _fails_under_a_hook_of_its_own, folder=tmp_path, code=1)
    assert output.count("own hook saw ValueError") == 1 and output.count("Traceback") == 1
    assert f"heard: {HEARD}ValueError: bad batch of two lines (test_uncaught.py, line" in output
    assert ", in step). rank 1 (host " in output and "was the first to leave" in output
    # Not the order of the lines: they come from two processes.
    assert "after the traceback: True" in output


def save_checkpoint():
    with open("/dev/full", "wb") as file:
        np.save(file, np.zeros(1 << 16))  # the disk is full: NumPy raises


def _fills_the_disk():
    _rank_0_waits()
    save_checkpoint()


def test_an_exception_of_a_library_names_the_line_of_the_program(tmp_path):
    output = run_to_the_end(2, _fills_the_disk, folder=tmp_path, code=1)
    heard = next(line for line in output.splitlines() if "heard:" in line)
    assert "(test_uncaught.py, line" in heard and ", in save_checkpoint)" in heard, heard


def _replaces_the_hook():
    sys.excepthook = lambda *what: print("own hook", flush=True)
    _rank_0_waits()
    step()


def test_a_program_that_replaces_the_hook(tmp_path):
    output = run_to_the_end(2, _replaces_the_hook, folder=tmp_path, code=1)
    assert "own hook" in output and f"heard: {HEARD}ValueError: bad batch" in output


def _fails_in_a_thread():
    _rank_0_waits()
    thread = threading.Thread(target=step, name="trainer")
    thread.start()
    thread.join()


def test_an_exception_in_a_thread(tmp_path):
    output = run_to_the_end(2, _fails_in_a_thread, folder=tmp_path)
    assert f"heard: {HEARD}in thread 'trainer': ValueError: bad batch" in output
    assert "Exception in thread trainer" in output


def test_an_exception_at_a_prompt_ends_nothing(tmp_path):
    done = subprocess.run(program_words(raise_at_a_prompt), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "still there: [1. 1.]" in done.stdout, done
    assert "ZeroDivisionError" in done.stderr


def test_a_function_of_horovod_run(capfd):
    def work():
        import signal

        import numpy as np

        import hvd_core as hvd

        hvd.init()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as above
        if hvd.rank() == 1:
            raise KeyError("no such column")
        hvd.allreduce(np.ones(2), name="alone")

    try:
        horovod.run(work, num_proc=2)
    except Exception:
        pass
    else:
        raise AssertionError("the job did not fail")
    said = capfd.readouterr()
    assert f"{HEARD}KeyError: 'no such column'" in said.out + said.err
