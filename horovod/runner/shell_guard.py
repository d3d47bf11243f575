"""Turns itself into a remote shell that ends when the launcher does, even by SIGKILL.

Started by remote_ranks.py with the plain interpreter: argv is the launcher's process id and the command. Without it a
process that the launcher's program has forked could keep the remote shell's standard input open, and
the job on the other host would run on. Not to be imported.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main():
    launcher, command = int(sys.argv[1]), sys.argv[2:]
    # Where prctl(2) is forbidden the end of standard input remains.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != launcher:
        return 1  # it ended before the line above took effect
    # Python ignores it, and what it starts would go on doing so.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
