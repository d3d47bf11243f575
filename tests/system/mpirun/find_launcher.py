"""A rank that looks for its launcher, and tells with each line that it reads whether the launcher has ended, and the
process id of its own parent."""

import os
import sys

from hvd_core._bootstrap.launchers import process
from hvd_core._bootstrap.launchers.identity import identify


def main():
    launcher = process.watch(identify(os.environ), "here")
    print(os.getpid(), launcher is not None, flush=True)
    for _ in sys.stdin:
        print(launcher.has_ended(), os.getppid(), flush=True)


if __name__ == "__main__":
    main()
