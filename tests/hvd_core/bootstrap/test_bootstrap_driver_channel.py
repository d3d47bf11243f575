"""The socket of an elastic job's worker: which process opens it."""

import os
import socket

import pytest

from hvd_core._bootstrap import driver_channel


def test_a_socket_that_is_none_is_explained(monkeypatch, tmp_path):
    monkeypatch.setattr(driver_channel, "_opened", False)
    with open(tmp_path / "file", "w") as file:
        monkeypatch.setenv(driver_channel.DESCRIPTOR, str(file.fileno()))
        with pytest.raises(ValueError, match="is not the socket of an elastic job"):
            driver_channel.channel()


@pytest.mark.parametrize("told", [True, False], ids=["of a worker", "of another process"])
def test_a_forked_child_has_the_channel_that_is_its_own(monkeypatch, told):
    """A worker's child has no channel, even before the worker has opened its own. The child of a process to which no
    launcher has given a channel may be given a channel."""
    monkeypatch.setattr(driver_channel, "_opened", False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if told:
            monkeypatch.setenv(driver_channel.DESCRIPTOR, str(theirs.fileno()))
        child = os.fork()
        if child == 0:
            os.environ[driver_channel.DESCRIPTOR] = str(theirs.fileno())
            os._exit(40 + (driver_channel.channel() is None))
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 40 + told
