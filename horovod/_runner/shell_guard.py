"""Executes a remote shell so that it ends with the launcher, even if the launcher is killed by SIGKILL.

Started by remote_ranks.py with the plain interpreter; the arguments are the launcher's process id and the command.
Without this, a process that the launcher's program has forked could keep the remote shell's standard input open, and
the job on the other host would continue. Not to be imported.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main():
    launcher, command = int(sys.argv[1]), sys.argv[2:]
    # If prctl(2) is forbidden, the end of standard input still ends the job.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != launcher:
        return 1  # it ended before the line above took effect
    # Python ignores SIGPIPE, and the executed program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
