"""The backend chaos: it computes correctly, and fails exactly as requested."""

from __future__ import annotations

import time

import pytest

import chaos_ranks
from hvd_core.backends import installed
from hvd_core.backends._chaos import OPTIONS
from hvd_core.backends._discovery import lookup
from hvd_core.backends._discovery.installed_backend import load_backend
from launchers import Launcher


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path)
    yield made
    made.clean_up()


def lines(done, count):
    found = [line.partition(">:")[2] for line in done.stdout.splitlines()]
    assert len(found) == count, done.stdout + done.stderr
    return found


def chaos(**options):
    return {"HOROVOD_BACKEND": "chaos"} | {
        f"HOROVOD_BACKEND_CHAOS_{name.upper()}": str(value) for name, value in options.items()
    }


def test_it_computes(launcher):
    done = launcher.python(3, chaos_ranks.check_values, env=chaos())
    assert lines(done, 3) == ["right"] * 3, done.stderr


@pytest.mark.netns
def test_it_computes_between_hosts(hosts, tmp_path):
    network = hosts(2)
    options = ("-H", network.spec(2, 1), "--remote-shell", "ip netns exec {host}")
    launcher = Launcher(tmp_path, network[0].enter, options)
    try:
        done = launcher.python(3, chaos_ranks.check_values, env=chaos())
        assert lines(done, 3) == ["right"] * 3, done.stderr
    finally:
        launcher.clean_up()


def test_a_rank_fails_at_an_operation(launcher):
    done = launcher.python(2, chaos_ranks.reduce_three_times, env=chaos(fail_rank=1, fail_at_op=2))
    text = "rank 1: chaos: allreduce: rank 1 fails at operation 2 (allreduce), as requested (REMOTE)"
    assert lines(done, 2) == [f"2 {text}"] * 2, done.stderr


def test_after_a_failure_the_same_processes_go_on(launcher):
    done = launcher.python(
        2, chaos_ranks.reduce_three_times_and_again, env=chaos(fail_rank=0, fail_at_op=2, fail_how="device")
    )
    assert [line[:1] for line in sorted(lines(done, 4))] == ["2", "2", "[", "["], done.stderr
    assert lines(done, 4).count("[2]") == 2


@pytest.mark.parametrize("how, word", [("exit", "exit"), ("kill", "SIGKILL")])
def test_a_rank_dies_at_an_operation(launcher, how, word):
    done = launcher.python(
        2, chaos_ranks.reduce_three_times, env=chaos(fail_rank=1, fail_at_op=2, fail_how=how)
    )
    assert done.returncode != 0
    assert "passed" not in done.stdout
    assert "Process name: 1" in done.stderr


def test_a_rank_hangs_until_the_job_is_aborted(launcher):
    # Rank 0 reaches its time limit; its abort wakes rank 1.
    done = launcher.python(
        2,
        chaos_ranks.reduce_three_times,
        env=chaos(fail_rank=1, fail_at_op=2, fail_how="hang", timeout_ms=3000),
    )
    text = "rank 0: chaos: allreduce: rank 1 has sent nothing for 3 s (TIMEOUT)"
    assert lines(done, 2) == [f"2 {text}"] * 2, done.stderr


def test_a_lost_message_is_waited_for(launcher):
    done = launcher.python(
        2, chaos_ranks.reduce_three_times, env=chaos(drop_rank=1, drop_at_op=2, timeout_ms=3000)
    )
    found = lines(done, 2)
    assert all(line.startswith("2 ") and "has sent nothing for 3 s (TIMEOUT)" in line for line in found), (
        found
    )
    done = launcher.python(2, chaos_ranks.reduce_three_times, env=chaos(drop=1.0, timeout_ms=300))
    assert all(line.startswith("1 ") for line in lines(done, 2)), done.stdout


def test_slow_operations(launcher):
    # Rank 0 may begin when rank 1 is half through the first operation, but not the other two.
    began = time.monotonic()
    done = launcher.python(2, chaos_ranks.reduce_three_times, env=chaos(delay_ms=300, delay_rank=1))
    assert time.monotonic() - began > 0.6
    for line in lines(done, 2):
        word, _, seconds = line.partition(" ")
        assert word == "passed" and float(seconds) >= 0.6, "rank 0 waits for rank 1"


def test_a_value_that_is_none(launcher):
    done = launcher.python(2, chaos_ranks.reduce_three_times, env=chaos(drop="often"))
    assert done.returncode != 0
    assert "HOROVOD_BACKEND_CHAOS_DROP" in done.stderr and "'often'" in done.stderr, done.stderr


def test_its_options_are_in_the_table():
    backend = lookup("chaos", "test")
    assert not backend.automatic and backend.origin == "embedded"
    told = [
        (o["name"], o["type"], o["fallback"], o["range"], o["doc"]) for o in load_backend(backend)["options"]
    ]
    assert told == [option.texts() for option in OPTIONS]
    assert "chaos" in [b.name for b in installed()]
