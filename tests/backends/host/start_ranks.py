"""The launcher of ranks that call tables, with no engine and no horovodrun. The launcher imports the modules that all
ranks need, and forks the ranks.

python start_ranks.py RANKS PROGRAM [ARGUMENT ...]
"""

import ctypes
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def _become(rank, program, launcher):
    """Runs the program as that rank; the process ends here."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)  # a rank does not outlive its launcher
        if os.getppid() != launcher:
            return
        os.environ["HOROVOD_RANK"] = str(rank)
        sys.argv[:] = program
        runpy.run_path(program[0], run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main():
    count, program = int(sys.argv[1]), sys.argv[2:]
    # Every rank needs these modules and pytest, whose import costs more than a fork.
    sys.path.insert(1, str(Path(__file__).parents[2]))
    import ranks  # noqa: F401
    import reference  # noqa: F401

    launcher = os.getpid()
    for rank in range(count):
        if os.fork() == 0:
            _become(rank, program, launcher)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(count)]
    sys.exit(int(any(codes)))


if __name__ == "__main__":
    main()
