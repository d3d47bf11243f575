"""An exception that ends one rank's program is the cause that the others report; the program's own hooks are kept."""

import subprocess
import sys
import textwrap

import horovod
from jobs import run

HEARD = "Horovod has been shut down. This was caused by an exception on rank 1: "

# Rank 0 waits for rank 1, which never comes. When rank 1 has failed the launcher asks it to end a second later, which
# may be before it has said why.
RANK_0_WAITS = """
if rank == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    text = expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(3), name="alone"), "rank 1")
    print("heard:", text, flush=True)
    print("after the traceback:", is_told("the traceback"), flush=True)
    raise SystemExit(0)
def step():
    raise ValueError("bad batch\\nof two lines")
"""


def test_an_exception_is_the_cause_on_the_others(tmp_path):
    # A thread that goes on holds up the interpreter's exit: the others hear of it before.
    text = (
        """
import threading
def hook(kind, error, trace):
    print("own hook saw", kind.__name__, flush=True)
    before(kind, error, trace)
    tell("the traceback")
before, sys.excepthook = sys.excepthook, hook
runtime.shutdown(); runtime.init()  # the hook is there already
assert sys.excepthook is not hook
"""
        + RANK_0_WAITS
        + """
threading.Thread(target=time.sleep, args=(1.5,)).start()
step()
"""
    )
    output = run(2, tmp_path, text, code=1)
    assert output.count("own hook saw ValueError") == 1 and output.count("Traceback") == 1
    assert f"heard: {HEARD}ValueError: bad batch of two lines (program.py, line" in output
    assert ", in step) rank 1 (host " in output and "was the first to leave" in output
    # Not the order of the lines: they come from two processes.
    assert "after the traceback: True" in output


def test_a_program_that_replaces_the_hook(tmp_path):
    text = "sys.excepthook = lambda *what: print('own hook', flush=True)\n" + RANK_0_WAITS + "step()\n"
    output = run(2, tmp_path, text, code=1)
    assert "own hook" in output and f"heard: {HEARD}ValueError: bad batch" in output


def test_an_exception_in_a_thread(tmp_path):
    text = (
        "import threading\n"
        + RANK_0_WAITS
        + """
thread = threading.Thread(target=step, name="trainer")
thread.start()
thread.join()
"""
    )
    output = run(2, tmp_path, text)
    assert f"heard: {HEARD}in thread 'trainer': ValueError: bad batch" in output
    assert "Exception in thread trainer" in output


def test_an_exception_at_a_prompt_ends_nothing(tmp_path):
    program = """
        import code, sys
        import hvd_core as hvd
        import numpy as np
        before = sys.excepthook
        hvd.init()
        sys.ps1 = ">>> "
        prompt = code.InteractiveInterpreter({"hvd": hvd, "np": np})
        prompt.runsource("1 / 0")
        prompt.runsource("print('still there:', hvd.allreduce(np.ones(2)))")
        hvd.shutdown()
        assert sys.excepthook is before
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
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
