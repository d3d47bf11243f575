"""connect() in real processes at a launcher's store, on one host."""

import contextlib
import os
import socket
import threading
import time

import pytest

from bootstrap_job import check_healthy, reports, start_rank
from hvd_core._base.auth import new_secret
from hvd_core._base.sockets import BootstrapTimeout, split_address
from hvd_core._bootstrap.store import StoreClient, StoreServer
from hvd_core._bootstrap.world import connect

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def store():
    secret = new_secret()
    with StoreServer("127.0.0.1", secret) as server:
        yield server.address, secret


def run_job(store, size, *options, **extra):
    return reports([start_rank(rank, size, *store, *options, **extra) for rank in range(size)])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_connect_brings_ranks_together(store, size):
    worlds = check_healthy(run_job(store, size), size, "horovodrun")
    for rank, world in enumerate(worlds):
        assert world["hosts"] == [0] * size
        assert (world["local_rank"], world["local_size"]) == (rank, size)
        assert (world["cross_rank"], world["cross_size"]) == (0, 1)
        assert all(link[0] == "shm" for link in world["links"])


def test_connect_over_tcp_on_one_host_when_told(store):
    # One rank's wish decides, or the two ends of a link would be of two kinds.
    processes = [start_rank(0, 3, *store), start_rank(1, 3, *store)]
    processes.append(start_rank(2, 3, *store, HOROVOD_CONTROL_TRANSPORT="tcp"))
    worlds = check_healthy(reports(processes), 3, "horovodrun")
    assert {link[0] for world in worlds for link in world["links"]} == {"tcp"}
    assert [world["local_size"] for world in worlds] == [3, 3, 3]


def test_connect_again_after_close(store):
    check_healthy(run_job(store, 3, "twice"), 3, "horovodrun")


def test_connect_leaves_only_a_mark_in_the_store(store):
    run_job(store, 2)
    client = StoreClient(*store)
    for key in ("hello", "hello/0", "hello/1", "hosts", "hosts/0", "link/0", "up"):
        with pytest.raises(BootstrapTimeout):
            client.get(f"hvd/1/{key}", 0)
    assert client.absent("hvd/1/hello", 2) == [0, 1]
    client.close()


def test_forked_child_keeps_no_descriptor_and_the_parent_keeps_all(store):
    for world in check_healthy(run_job(store, 2, "fork"), 2, "horovodrun"):
        assert world["fork"]["open"] == [] and world["fork"]["parent_had"] >= 6
        assert world["fork"]["rank"] == world["rank"]


def test_missing_ranks_are_named_by_everybody_in_time(store):
    started = time.monotonic()
    extra = {"HOROVOD_START_TIMEOUT": "8"}  # both that are there have to come within it
    processes = [start_rank(rank, 4, *store, **extra) for rank in (0, 2)]
    said = reports(processes)
    assert time.monotonic() - started < 50
    for report in said:
        assert report["error"] in ("BootstrapTimeout", "BootstrapError")
        assert "ranks 1 and 3 of 4 have not called init()" in report["text"]
        assert "within 8 s" in report["text"]


def test_missing_rank_zero_is_named(store):
    said = reports([start_rank(1, 2, *store, HOROVOD_START_TIMEOUT="1.5")])
    assert "rank 0 of 2 has not called init()" in said[0]["text"]


def test_wrong_secret_is_refused_and_the_job_goes_on(store):
    intruder = start_rank(1, 2, store[0], b"w" * 32)
    assert "does not accept this job's secret" in reports([intruder])[0]["text"]
    check_healthy(run_job(store, 2), 2, "horovodrun")


def test_two_processes_with_one_rank_are_told(store):
    first = start_rank(1, 2, *store, HOROVOD_START_TIMEOUT="12")
    client = StoreClient(*store)
    client.get("hvd/1/hello/1", 60)
    client.close()
    second = start_rank(1, 2, *store, HOROVOD_START_TIMEOUT="12")
    said = reports([first, second])
    assert any("two processes claim rank 1" in report["text"] for report in said), said


def test_ranks_that_disagree_about_the_size_are_told(store):
    extra = {"HOROVOD_START_TIMEOUT": "20"}
    said = reports([start_rank(0, 2, *store, **extra), start_rank(1, 3, *store, **extra)])
    for report in said:
        assert "disagree about the job's size: rank 0 says 2, rank 1 said 3" in report["text"]


def test_garbage_at_all_ports_does_not_disturb_the_job(store):
    stop = threading.Event()

    def attack(address):
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=1) as sock:
            sock.sendall(os.urandom(300))
            time.sleep(0.02)

    def attack_all():
        client = StoreClient(*store)
        while not stop.is_set():
            attack(split_address(store[0]))
            for rank in range(4):
                with contextlib.suppress(BootstrapTimeout):
                    address = client.get(f"hvd/1/link/{rank}", 0).decode().strip('"')
                    attack(split_address(address))
        client.close()

    attacker = threading.Thread(target=attack_all)
    attacker.start()
    try:
        worlds = run_job(store, 4, HOROVOD_CONTROL_TRANSPORT="tcp")
    finally:
        stop.set()
        attacker.join()
    check_healthy(worlds, 4, "horovodrun")


def test_two_jobs_at_once_do_not_meet(store):
    secret = new_secret()
    with StoreServer("127.0.0.1", secret) as other:
        first = [start_rank(rank, 2, *store) for rank in range(2)]
        second = [start_rank(rank, 2, other.address, secret) for rank in range(2)]
        one, two = reports(first), reports(second)
    one, two = check_healthy(one, 2, "horovodrun"), check_healthy(two, 2, "horovodrun")
    assert set(one[0]["pids"]).isdisjoint(two[0]["pids"])


def test_two_jobs_with_one_secret_at_once_do_not_meet(store):
    """A user may set HOROVOD_SECRET_KEY for all jobs. The second job begins when rank 0 of the first waits in init()."""
    address, secret = store
    first = [start_rank(0, 3, address, secret), start_rank(1, 3, address, secret)]
    client = StoreClient(address, secret)
    end = time.monotonic() + 60
    while client.absent("hvd/1/hello", 3) != [2]:
        assert time.monotonic() < end
        time.sleep(0.02)
    client.close()
    with StoreServer("127.0.0.1", secret) as server:
        worlds = check_healthy(run_job((server.address, secret), 3), 3, "horovodrun")
    assert all(link[0] == "shm" for world in worlds for link in world["links"])
    worlds = check_healthy(reports([*first, start_rank(2, 3, address, secret)]), 3, "horovodrun")
    assert all(link[0] == "shm" for world in worlds for link in world["links"])


def test_a_late_rank_is_waited_for(store):
    processes = [start_rank(0, 2, *store), start_rank(1, 2, *store, "sleep=2")]
    check_healthy(reports(processes), 2, "horovodrun")


def test_one_process_is_cheap_and_opens_nothing():
    def opened():
        return set(os.listdir("/proc/self/fd"))

    before, threads = opened(), threading.active_count()
    connect({}).close()
    took = []
    for _ in range(10):  # something else may have the processor while one of them is made
        started = time.perf_counter()
        world = connect({})
        took.append(time.perf_counter() - started)
    assert (world.rank, world.size, world.launcher, world.links, world.store) == (0, 1, "single", [], None)
    assert min(took) < 0.020
    assert opened() <= before and threading.active_count() <= threads
    world.close()


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"HOROVOD_CONTROL_TRANSPORT": "rdma"}, "HOROVOD_CONTROL_TRANSPORT='rdma' is not one of"),
        ({"HOROVOD_START_TIMEOUT": "soon"}, "HOROVOD_START_TIMEOUT must be a positive number of seconds"),
        ({"HOROVOD_GLOO_TIMEOUT_SECONDS": "0"}, "HOROVOD_GLOO_TIMEOUT_SECONDS must be a positive number"),
    ],
)
def test_bad_settings_are_named(environ, text):
    with pytest.raises(ValueError, match=text):
        connect(environ)
