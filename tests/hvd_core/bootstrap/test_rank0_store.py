"""The store that rank 0 serves for launchers without a store: how long it stays, where it listens, and the end of a
process below the launcher's process manager."""

import contextlib
import logging
import random
import secrets
import socket
import sys
from pathlib import Path

import pytest

import lasting_ranks
from bootstrap_job import start
from hvd_core._bootstrap import rendezvous
from hvd_core._bootstrap.launchers.identity import identify
from hvd_core._bootstrap.rendezvous import mpi4py_support, rank0_store

SECRET = b"s" * 32


def program(function, folder):
    return [sys.executable, lasting_ranks.__file__, function, folder]


def ended(process):
    out, err = process.communicate(timeout=150)
    return process.returncode, sorted(out.splitlines()), err


def free_port():
    """Below the ports that the system chooses for connections: no other test's gets it before rank 0 listens there."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(1024, first), min(50, max(0, first - 1024))):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    with socket.create_server(("127.0.0.1", 0)) as taken:  # the system chooses from all
        return taken.getsockname()[1]


def test_rank_0_stays_while_others_are_in_an_init_without_it(tmp_path):
    more = {"HOROVOD_STORE": f"rank0://127.0.0.1:{free_port()}", "HOROVOD_SECRET_KEY": secrets.token_hex(32)}
    words = program("others_begin_again", tmp_path)
    ranks = [start(words, HOROVOD_RANK=rank, HOROVOD_SIZE=3, **more) for rank in range(3)]
    first, second, third = (ended(rank) for rank in ranks)
    assert first[:2] == (0, []), first
    assert second[:2] == (0, ["rank 1: 2"]) and third[:2] == (0, ["rank 2: 2"]), (second, third)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("mpirun", ["mpich"], indirect=True)
def test_ranks_of_mpich_end_in_any_order_and_a_part_of_one_rank_attends(mpirun, tmp_path):
    told = {"HOROVOD_RENDEZVOUS": "pmi"}
    job = start([*mpirun, "-np", "3", *program("one_ends_first", tmp_path)], **told)
    assert ended(job)[:2] == (0, ["rank 0: lives", "rank 2: lives"])
    job = start([*mpirun, "-np", "3", *program("others_begin_again", tmp_path)], **told)
    assert ended(job)[:2] == (0, ["rank 1: 2", "rank 2: 2"])


def test_where_the_store_listens_behind_the_address_of_a_service(caplog):
    """192.0.2.1 is an address of no machine."""
    place = "tcp://192.0.2.1:0"
    serve = rank0_store.__dict__["_serve_at"]
    # Port 0 is for the test: any free one.
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "horovod"):
        patch.setattr(rank0_store, "split_address", lambda address: ("192.0.2.1", 0))
        with serve(place, SECRET, {"HOROVOD_GLOO_IFACE": "no-such,lo"}) as server:
            assert server.address.startswith("tcp://127.0.0.1:")
        assert not caplog.records
        with serve(place, SECRET, {}) as server:
            assert server.address.startswith("tcp://0.0.0.0:")
    assert "its store listens on all interfaces" in caplog.text and "HOROVOD_GLOO_IFACE" in caplog.text


@pytest.mark.parametrize("mpi4py", [True, False])
def test_a_launcher_that_does_not_tell_that_it_starts_mpi(monkeypatch, mpi4py):
    monkeypatch.setattr(mpi4py_support, "is_installed", lambda: mpi4py)
    torchrun = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    choice = rendezvous.choose(identify(torchrun), torchrun)
    assert choice.method == "missing"
    assert ("HOROVOD_RENDEZVOUS=mpi4py" in choice.remedy) == mpi4py
