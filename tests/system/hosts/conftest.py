"""horovodrun on several hosts: started inside the first one, with `ip netns exec` as remote shell."""

import pytest

from launchers import Launcher

NETNS_SHELL = "ip netns exec {host}"


class Cluster(Launcher):
    """A launcher on host 0 of `network`, whose jobs have `slots[i]` ranks on host i."""

    def __init__(self, folder, network, slots, shell=NETNS_SHELL):
        self.network = network
        options = ("-H", network.spec(*slots), "--remote-shell", shell)
        super().__init__(folder, network[0].enter, options)


@pytest.fixture
def cluster(hosts, tmp_path):
    """cluster(2, 1): a Cluster with two slots on the first host and one on the second."""
    made = []

    def make(*slots, network=None, folder=tmp_path, **options):
        made.append(Cluster(folder, network or hosts(len(slots)), slots, **options))
        return made[-1]

    yield make
    for one in made:
        one.clean_up()
