"""Commits in a file: what is on the disk when a process or a machine fails while one is written."""

import os
import signal

from harness import run_on_ranks
from horovod.common._elastic_state import DurableCommits


class State:
    """The part of a state that DurableCommits uses."""

    def __init__(self, **values):
        self.values = values

    def durable_parts(self):
        return self.values

    def _references(self):
        return {}


class Kills:
    """A value whose pickling ends the process, except when the state is checked."""

    def __init__(self):
        self.pickled = 0

    def __reduce__(self):
        self.pickled += 1
        if self.pickled > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return int, ()


def leftovers(path):
    child = os.fork()
    if child == 0:
        DurableCommits(State(value=Kills()), path, 1).committed()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert os.listdir(os.path.dirname(path)) == [f"commits.{child}.new"]
    commits = DurableCommits(State(value=1), path, 1)
    commits.committed()
    commits.committed()
    assert os.listdir(os.path.dirname(path)) == ["commits"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    run_on_ranks(1, leftovers, str(tmp_path / "commits"))


def other_state(path):
    """The file that is being written for a state with a name that begins with this one's."""
    other = f"{path}.more.17.new"
    with open(other, "wb"):
        DurableCommits(State(value=1), path, 1).committed()
    assert os.path.exists(other)


def test_the_file_of_another_state_is_left_alone(tmp_path):
    run_on_ranks(1, other_state, str(tmp_path / "commits"))
