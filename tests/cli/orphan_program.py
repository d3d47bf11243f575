"""orphan_program.py FILE: its fork (hvd_core._cli.apart) makes the file, unless it notices that the program has ended."""

import os
import signal
import sys
import time
from pathlib import Path

from hvd_core._cli import apart


def main(path):
    setsid, caller = os.setsid, os.getpid()

    def setsid_late():  # just before the parent-death signal is asked for
        os.kill(caller, signal.SIGKILL)
        while os.getppid() == caller:
            time.sleep(0.01)
        setsid()

    os.setsid = setsid_late
    apart.run_apart(lambda send: Path(path).touch(), apart.limits(5))


if __name__ == "__main__":
    main(sys.argv[1])
