"""Runs horovodrun with silent ranks in this process, where Ctrl-C comes to another thread than the one that waits. So it
ends no system call of that thread, as if it had come just before the call.

python silent_launcher.py ARGUMENTS OF HOROVODRUN
"""

import signal
import sys
import threading

from horovod.runner.launch import run_commandline

if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # of this thread alone
    run_commandline(sys.argv[1:])
