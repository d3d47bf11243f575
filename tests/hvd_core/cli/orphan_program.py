"""orphan_program.py FILE: its fork (run_forked) makes the file, unless it notices that the program has ended."""

import os
import signal
import sys
import time
from pathlib import Path

from hvd_core._base import sandbox


def main(path):
    setsid, parent = os.setsid, os.getpid()

    def setsid_late():  # just before the parent-death signal is asked for
        os.kill(parent, signal.SIGKILL)
        while os.getppid() == parent:
            time.sleep(0.01)
        setsid()

    os.setsid = setsid_late
    sandbox.run_forked(lambda reporter: Path(path).touch(), {})


if __name__ == "__main__":
    main(sys.argv[1])
