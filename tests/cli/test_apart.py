"""A plugin's code in a process of its own; most of it is tested by the commands (test_plugin_faults.py)."""

import os

from hvd_core.cli import apart


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
