"""A rank that looks for its launcher, and tells with each line that it reads whether the launcher has ended, and the
process id of its own parent."""

import os
import sys

from hvd_core._bootstrap.identity import identify
from hvd_core._bootstrap.peer_liveness import find_launcher_process


def main():
    launcher = find_launcher_process(identify(os.environ), "here")
    print(os.getpid(), launcher is not None, flush=True)
    for _ in sys.stdin:
        print(launcher.has_ended(), os.getppid(), flush=True)


if __name__ == "__main__":
    main()
