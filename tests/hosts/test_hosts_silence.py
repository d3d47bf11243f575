"""Links between hosts notice a host that has fallen silent within HOROVOD_GLOO_TIMEOUT_SECONDS."""

import sys
import time

import pytest
from namespaces import Network

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

TIMEOUT_S = 3
MARGIN_S = 20  # for a busy machine
# Connects; once a host has been cut off, waits for the first event on a link between hosts. With "talk", data is
# under way when the host is cut off.
WATCH = """
import errno, os, select, socket, sys, time
from hvd_core.bootstrap import connect
world = connect()
links = {link.sock_fd: link.peer for link in world.links if type(link).__name__ == "TcpLink"}
open(f"ready.{world.rank}", "w").write("x\\n")
while not os.path.exists("cut"):
    time.sleep(0.01)
cut = float(open("cut").read())
if "talk" in sys.argv:
    for fd, peer in links.items():
        # Rank 1 is not cut off: data sent to it would end its wait.
        if world.rank != 1 and peer != 1:
            os.write(fd, b"still there?")
for fd in select.select(links, [], [], 60)[0]:
    error = socket.socket(fileno=os.dup(fd)).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    print(links[fd], errno.errorcode.get(error, error), time.monotonic() - cut, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("talk", [(), ("talk",)], ids=["idle", "busy"])
@pytest.mark.parametrize("cut", [Network.link_down, Network.unplug])
def test_a_host_that_is_cut_off_is_noticed_on_both_sides(cluster, cut, talk):
    made = cluster(1, 1, 1)
    environment = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(TIMEOUT_S)}
    process = made.start("-np", 3, sys.executable, "-c", WATCH, *talk, env=environment)
    made.wait_for(3, "ready.")
    cut(made.network, 2)
    (made.folder / "cut.new").write_text(f"{time.monotonic()}\n")
    (made.folder / "cut.new").rename(made.folder / "cut")
    lost = {}
    while len(lost) < 2:
        rank, _, said = process.stdout.readline().decode().partition("]<stdout>:")
        peer, error, seconds = said.split()
        lost[int(rank[1:]), int(peer)] = error, float(seconds)
    process.terminate()
    process.communicate(timeout=100)
    assert lost.keys() == {(0, 2), (2, 0)}
    for error, seconds in lost.values():
        assert error in ("ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH")
        assert seconds < TIMEOUT_S + MARGIN_S
