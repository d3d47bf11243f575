"""horovodrun on several hosts: started inside the first one, with `ip netns exec` as remote shell."""

import sys

import pytest
from launchers import Launcher

from harness import plain

NETNS_SHELL = "ip netns exec {host}"


class Cluster(Launcher):
    """A launcher on host 0 of `network`, whose jobs have `slots[i]` ranks on host i."""

    def __init__(self, folder, network, slots, python, shell=NETNS_SHELL):
        self.network = network
        options = ("-H", network.spec(*slots), "--remote-shell", shell)
        super().__init__(folder, network[0].enter, options, python)

    def environment(self, env=None):
        """The environment of the launcher; where the launcher is forked, the agents are too."""
        if self.interpreter == plain.python():
            env = {"HOROVOD_REMOTE_PYTHON": plain.executable(), **(env or {})}
        return super().environment(env)


@pytest.fixture
def cluster(request, hosts, tmp_path):
    """cluster(2, 1): a Cluster with two slots on the first host and one on the second. horovodrun and the ranks of
    python() are forked, or interpreters for tests with the marker `interpreters`."""
    marked = request.node.get_closest_marker("interpreters")
    python = [sys.executable] if marked else plain.python()
    made = []

    def make(*slots, network=None, folder=tmp_path, **options):
        made.append(Cluster(folder, network or hosts(len(slots)), slots, python, **options))
        return made[-1]

    yield make
    for one in made:
        one.clean_up()
