"""Device memory on two hosts with two ranks each: the vendor's library within the hosts, host memory between them."""

import os
import re
import sys
from pathlib import Path

import pytest

from harness.frameworks import horovodrun

sys.path.insert(0, str(Path(__file__).parents[2] / "backends/eccl_stub"))

import stub_backend

pytestmark = [pytest.mark.netns, pytest.mark.timeout(400)]

RANK = Path(__file__).with_name("host_device_ranks.py")
COUNT, ROUNDS = 1 << 18, 6
LEVELS = {"HOROVOD_BACKEND": "gcu=eccl_stub", "HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}
HOW = "eccl_stub within hosts, and tcp between them through host memory"


def job(network, count, rounds, environment):
    command = horovodrun(4, "-H", network.spec(2, 2), "--remote-shell", "ip netns exec {host}")
    command += map(str, (RANK, stub_backend.program_side(), count, rounds))
    done = network[0].run(*command, timeout=280, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 4, done.stdout
    return done.stdout


def sent_by_each_host(network, **environment):
    """Bytes per allreduce, in units of the array's size; how the engine served it."""
    before = [network.byte_counters(host)[0] for host in (0, 1)]
    said = job(network, COUNT, ROUNDS, environment)
    after = [network.byte_counters(host)[0] for host in (0, 1)]
    found = [(b - a) / (4 * COUNT * ROUNDS) for a, b in zip(before, after)]
    return found, re.search("served: allreduce float32 Sum (.*)", said)[1]


def test_an_allreduce_over_two_levels_sends_each_byte_once(hosts):
    network = hosts(2)
    levels, how = sent_by_each_host(network, **LEVELS)
    assert how == f"STAGED {HOW}"
    staged, how = sent_by_each_host(network, HOROVOD_BACKEND="gcu=tcp", HOROVOD_HIERARCHICAL_ALLREDUCE="0")
    assert how == "STAGED through host memory and tcp", how
    print(f"sent by each host per allreduce of N bytes: two levels {levels}, staged and flat {staged}")
    # Theory as in test_hosts_bytes.py. Headers and the start of the job come on top.
    for measured, theory in ((levels, 1.0), (staged, 2.0)):
        assert all(theory <= m <= theory * 1.06 + 0.1 for m in measured), (levels, staged)


def test_results_over_two_levels(hosts):
    said = job(hosts(2), 9000, 0, LEVELS)
    for line in (
        f"allreduce float32 Sum STAGED {HOW}",
        f"allreduce float16 Max STAGED {HOW}",
        f"allreduce float32 Average STAGED {HOW}",
        # The library has no sum of 64-bit integers, and averages of integers are exact.
        "allreduce int64 Sum EMULATED allgather + local reduction",
    ):
        assert f"served: {line}" in said, said
