"""Programs that log beside a forked child of theirs: one function each, named on the command line."""

import logging
import os
import sys

import hvd_core as hvd
from hvd_core._base import logs


def child_logs():
    hvd.init()
    pid = os.fork()
    if pid == 0:
        logging.getLogger("horovod").error("child")
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    hvd.shutdown()


def child_forwards():
    """Only the child has a job."""
    logging.basicConfig(format="%(name)s/%(levelname)s/%(message)s")
    logs.forward_engine_lines()
    pid = os.fork()
    if pid == 0:
        hvd.init()
        hvd.shutdown()
        logs.stop_forwarding()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


if __name__ == "__main__":
    globals()[sys.argv[1]]()
