"""A plugin's code in a process of its own; most of it is tested by the commands (test_plugin_faults.py)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from hvd_core._cli import apart


def fails(send):
    send("begun")
    raise ValueError("mine")


def test_an_exception_is_told_although_the_process_has_ended_before_it_is_read(monkeypatch):
    waitpid = os.waitpid

    def waitpid_late(pid, options):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return waitpid(pid, options)

    monkeypatch.setattr(os, "waitpid", waitpid_late)
    found = apart.run_apart(fails, apart.limits(5))
    assert (found.values, found.text()) == (["begun"], "it raised ValueError: mine")
    assert any("ValueError: mine" in line for line in found.output)


def test_a_process_whose_caller_died_before_the_death_signal_was_set_does_not_work(tmp_path):
    ended, ends = os.pipe()
    # An interpreter: the end of a forked program would end its children too.
    words = [sys.executable, str(Path(__file__).with_name("orphan_program.py")), str(tmp_path / "worked")]
    program = subprocess.Popen(words, pass_fds=(ends,))
    os.close(ends)
    assert os.read(ended, 1) == b""  # the program and its fork have ended
    os.close(ended)
    assert program.wait() == -signal.SIGKILL and not (tmp_path / "worked").exists()
