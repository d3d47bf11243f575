"""The backend chaos: it computes correctly, and fails exactly as requested."""

from __future__ import annotations

import time

import pytest
from launchers import Launcher

from hvd_core.backends import installed
from hvd_core.backends.chaos.backend import OPTIONS
from hvd_core.backends.discovery import lookup
from hvd_core.backends.discovery.loading import load

VALUES = """
import numpy as np
import hvd_core as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
for dtype in (np.uint8, np.int8, np.int32, np.int64, np.float16, np.float32, np.float64):
    every = [(np.arange(7) * (r + 1) % 11).astype(dtype) for r in range(size)]
    mine = every[rank]
    wide = np.stack(every).astype(np.float64)
    assert (hvd.allreduce(mine, op=hvd.Sum) == wide.sum(0)).all(), dtype
    assert (hvd.allreduce(mine, op=hvd.Min) == wide.min(0)).all()
    assert (hvd.allreduce(mine, op=hvd.Max) == wide.max(0)).all()
    mean = wide.mean(0) if np.dtype(dtype).kind == "f" else np.trunc(wide.mean(0))
    assert np.allclose(hvd.allreduce(mine, op=hvd.Average).astype(np.float64), mean, rtol=1e-3), dtype
    assert (hvd.allgather(mine[: rank + 1]) == np.concatenate([e[: r + 1] for r, e in enumerate(every)])).all()
    assert (hvd.broadcast(mine, 1) == every[1]).all()
    splits = [(rank + to) % 3 for to in range(size)]
    got, received = hvd.alltoall(np.arange(sum(splits)).astype(dtype) + dtype(rank), splits)
    assert list(received) == [(r + rank) % 3 for r in range(size)]
    assert (hvd.reducescatter(mine, op=hvd.Sum) == np.array_split(wide.sum(0), size)[rank]).all()
flags = np.array([rank == 0, True, False])
assert hvd.allreduce(flags, op=hvd.Sum).tolist() == [True, True, False]
assert hvd.allreduce(flags, op=hvd.Product).tolist() == [False, True, False]
extreme = np.array([127, -128, -3], np.int8)
assert hvd.allreduce(extreme, op=hvd.Average).tolist() == [127, -128, -3], "the sum does not fit, the mean does"
scaled = hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
assert scaled.tolist() == [2 * size] * 3
hvd.barrier()
print("right")
"""

# A rank of a job in which the second operation fails.
TWICE = """
import os, time
import numpy as np
import hvd_core as hvd
hvd.init()
began = time.monotonic()
try:
    for i in (1, 2, 3):
        hvd.allreduce(np.ones(4, np.float32), op=hvd.Sum, name=f"t{i}")
    print("passed", round(time.monotonic() - began, 1))
except hvd.HorovodInternalError as error:
    print(i, str(error).partition("aborted: ")[2])
"""


def lines(done, count):
    found = [line.partition(">:")[2] for line in done.stdout.splitlines()]
    assert len(found) == count, done.stdout + done.stderr
    return found


def chaos(**options):
    return {"HOROVOD_BACKEND": "chaos"} | {
        f"HOROVOD_BACKEND_CHAOS_{name.upper()}": str(value) for name, value in options.items()
    }


def test_it_computes(launcher):
    done = launcher.python(3, VALUES, env=chaos())
    assert lines(done, 3) == ["right"] * 3, done.stderr


@pytest.mark.netns
def test_it_computes_between_hosts(hosts, tmp_path):
    network = hosts(2)
    options = ("-H", network.spec(2, 1), "--remote-shell", "ip netns exec {host}")
    launcher = Launcher(tmp_path, network[0].enter, options)
    try:
        done = launcher.python(3, VALUES, env=chaos())
        assert lines(done, 3) == ["right"] * 3, done.stderr
    finally:
        launcher.clean_up()


def test_a_rank_fails_at_an_operation(launcher):
    done = launcher.python(2, TWICE, env=chaos(fail_rank=1, fail_at_op=2))
    text = "rank 1: chaos: allreduce: rank 1 fails at operation 2 (allreduce), as requested (REMOTE)"
    assert lines(done, 2) == [f"2 {text}"] * 2, done.stderr


def test_after_a_failure_the_same_processes_go_on(launcher):
    again = TWICE + "hvd.shutdown()\nhvd.init()\nprint(hvd.allreduce(np.ones(1, np.int32), op=hvd.Sum))\n"
    done = launcher.python(2, again, env=chaos(fail_rank=0, fail_at_op=2, fail_how="device"))
    assert [line[:1] for line in sorted(lines(done, 4))] == ["2", "2", "[", "["], done.stderr
    assert lines(done, 4).count("[2]") == 2


@pytest.mark.parametrize("how, word", [("exit", "exit"), ("kill", "SIGKILL")])
def test_a_rank_dies_at_an_operation(launcher, how, word):
    done = launcher.python(2, TWICE, env=chaos(fail_rank=1, fail_at_op=2, fail_how=how))
    assert done.returncode != 0
    assert "passed" not in done.stdout
    assert "Process name: 1" in done.stderr


def test_a_rank_hangs_until_the_job_is_aborted(launcher):
    # Rank 0 reaches its time limit; its abort wakes rank 1.
    done = launcher.python(2, TWICE, env=chaos(fail_rank=1, fail_at_op=2, fail_how="hang", timeout_ms=3000))
    text = "rank 0: chaos: allreduce: rank 1 has sent nothing for 3 s (TIMEOUT)"
    assert lines(done, 2) == [f"2 {text}"] * 2, done.stderr


def test_a_lost_message_is_waited_for(launcher):
    done = launcher.python(2, TWICE, env=chaos(drop_rank=1, drop_at_op=2, timeout_ms=3000))
    found = lines(done, 2)
    assert all(line.startswith("2 ") and "has sent nothing for 3 s (TIMEOUT)" in line for line in found), (
        found
    )
    done = launcher.python(2, TWICE, env=chaos(drop=1.0, timeout_ms=300))
    assert all(line.startswith("1 ") for line in lines(done, 2)), done.stdout


def test_slow_operations(launcher):
    # Rank 0 may begin when rank 1 is half through the first operation, but not the other two.
    began = time.monotonic()
    done = launcher.python(2, TWICE, env=chaos(delay_ms=300, delay_rank=1))
    assert time.monotonic() - began > 0.6
    for line in lines(done, 2):
        word, _, seconds = line.partition(" ")
        assert word == "passed" and float(seconds) >= 0.6, "rank 0 waits for rank 1"


def test_a_value_that_is_none(launcher):
    done = launcher.python(2, TWICE, env=chaos(drop="often"))
    assert done.returncode != 0
    assert "HOROVOD_BACKEND_CHAOS_DROP" in done.stderr and "'often'" in done.stderr, done.stderr


def test_its_options_are_in_the_table():
    backend = lookup("chaos", "test")
    assert not backend.automatic and backend.origin == "embedded"
    told = [(o["name"], o["type"], o["fallback"], o["range"], o["doc"]) for o in load(backend)["options"]]
    assert told == [option.texts() for option in OPTIONS]
    assert "chaos" in [b.name for b in installed()]
