"""A rank that ends during init(), at any moment: the others hear of it. Nothing but the death ends their wait."""

import os
import signal
import time

import pytest

from forked import ForkedRanks
from horovod._runner.failures import EndedRanks
from hvd_core import HorovodInternalError
from hvd_core._base.sockets import BootstrapTimeout, RankLost
from hvd_core._bootstrap import hosts, links, world
from hvd_core._bootstrap.store import StoreClient, StoreServer
from hvd_core._bootstrap.world import connect

SECRET = bytes(range(32))
SIZE = 3
# Far beyond the time within which the results are expected: a rank that waits for it fails the test.
START_TIMEOUT = 600
WITHIN = 60

# What a rank does next, by the moment of its death.
MOMENTS = {
    "roster": (hosts, "gather_roster"),
    "neighbours": (hosts, "find_neighbours"),
    "links": (links, "make_links"),
    "descriptors": (links, "_receive_fds"),
    "up": (world, "_all_up"),
    "finish": (world, "_finish"),
}


def environ(rank, address, **more):
    values = {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(SIZE), "HOROVOD_STORE": address}
    return {**values, "HOROVOD_SECRET_KEY": SECRET.hex(), **more}


def end_with(how):
    os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(0)


def loss_heard(rank, address, **more):
    """What connect() raised, or the next wait of init(), for a key that is never set."""
    try:
        connect(environ(rank, address, **more), START_TIMEOUT).read("never", WITHIN)
    except RankLost as error:
        assert isinstance(error, HorovodInternalError)
        return str(error)
    raise AssertionError("init() went on although a rank had ended")


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_death_is_heard_wherever_a_rank_waits(moment, victim, transport):
    if transport == "tcp" and moment == "descriptors":
        pytest.skip("with TCP links no descriptors are passed")
    how = "kill" if victim else "exit"

    def work(rank, pipe):
        if rank == victim:
            setattr(*MOMENTS[moment], lambda *_: end_with(how))
        return loss_heard(rank, address, HOROVOD_CONTROL_TRANSPORT=transport)

    with StoreServer("127.0.0.1", SECRET) as server:
        address = server.address
        with ForkedRanks(SIZE, work) as ranks:
            pid = ranks.processes[victim].pid
            heard = ranks.results(WITHIN, lost={victim})
    heard.pop(victim)
    for text in heard:
        assert f"rank {victim} (host " in text and f"pid {pid}) ended during init()" in text


def test_a_rank_that_does_not_go_on_is_named():
    def work(rank, pipe):
        if rank == 0:
            hosts.find_neighbours = lambda *_: end_later()
        with pytest.raises(BootstrapTimeout) as caught:
            connect(environ(rank, address, HOROVOD_SIZE="2"), 3)
        return str(caught.value)

    def end_later():
        time.sleep(6)
        raise BootstrapTimeout("this rank was silent")

    with StoreServer("127.0.0.1", SECRET) as server:
        address = server.address
        with ForkedRanks(2, work) as ranks:
            heard = ranks.results(WITHIN)
    assert heard[1] == "rank 0 did not answer on this host within 3 s"


def test_end_before_init_is_told_by_the_launcher():
    with StoreServer("127.0.0.1", SECRET) as server:
        address = server.address
        # Twice: the next init() is told too, since the process does not come back.
        with ForkedRanks(2, lambda rank, pipe: [loss_heard(rank, address) for _ in range(2)]) as ranks:
            EndedRanks(address, SECRET).report(2, 0, "nowhere")
            for texts in ranks.results(WITHIN):
                for text in texts:
                    assert "rank 2 ended (host nowhere, exit code 0) before it called init()" in text


def test_survivors_are_told_from_the_rank_that_failed_first():
    def work(rank, pipe):
        if rank == 1:
            setattr(*MOMENTS["links"], lambda *_: end_with("kill"))
        return loss_heard(rank, address)

    with StoreServer("127.0.0.1", SECRET) as server:
        address = server.address
        with ForkedRanks(SIZE, work) as ranks:
            ranks.results(WITHIN, lost={1})
        ends = EndedRanks(address, SECRET)
        assert ends.secondary_failures(range(SIZE)) == {0, 2}
        ends.close()


def test_store_carries_out_the_will_of_a_connection():
    with StoreServer("127.0.0.1", SECRET) as server:
        one, two, reader = (StoreClient(server.address, SECRET) for _ in range(3))
        one.set_last_will("gone", b"one")
        two.set_last_will("gone", b"two")
        two.set_last_will("", b"")
        assert reader.wait_any(("gone", "other"), 0) is None
        # A key that is there at the end of `three`, which ends after `two`.
        three = StoreClient(server.address, SECRET)
        three.set_last_will("three is gone", b"")
        two.close()
        three.close()
        assert reader.wait_any(("gone", "three is gone"), WITHIN) == (1, b"")
        assert reader.wait_any(("gone",), 0) is None
        one.close()
        assert reader.wait_any(("gone", "other"), WITHIN) == (0, b"one")
        reader.close()


def test_store_waits_for_any_of_several_keys():
    with StoreServer("127.0.0.1", SECRET) as server:
        waiting, other = StoreClient(server.address, SECRET), StoreClient(server.address, SECRET)
        keys = ("a", "b", "c")
        assert waiting.wait_any(keys, 0) is None
        assert waiting.wait_any(keys, 0) is None
        assert waiting.add("n", 2) == 2  # ends the wait, whose answer is not taken for this one's
        assert waiting.wait_any(keys, 0) is None
        other.set("c", b"third")
        assert waiting.wait_any(keys, WITHIN) == (2, b"third")
        other.set("a", b"first")
        assert waiting.wait_any(keys, WITHIN) == (0, b"first")
        assert waiting.wait_any(("b", "n"), WITHIN) == (1, b"2")
        waiting.close()
        other.close()
