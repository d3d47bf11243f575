"""How much goes between hosts: two hosts with two ranks each, counted on the hosts' interfaces.

Theory, for an allreduce of N bytes over 2 x 2 ranks, sent by each host:
- hierarchical: two lanes, each reduces N/2 between its two ranks, which send N/4 to reduce and N/4 to gather: N
- a flat ring that goes through the hosts one after the other: one of its edges leaves each host and carries
  2 (n - 1) / n N = 1.5 N
- flat, every rank with every other: each of the two ranks sends N/4 to two remote ranks, twice: 2 N
"""

import os
import sys

import pytest

from host_words import rank_words

pytestmark = [pytest.mark.netns, pytest.mark.timeout(400)]

COUNT, ROUNDS = 1 << 20, 12


def sent_by_each_host(network, **environment):
    """Bytes per allreduce, in units of the array's size."""
    before = [network.byte_counters(host)[0] for host in (0, 1)]
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "4", "-H", network.spec(2, 2)]
    command += ["--remote-shell", "ip netns exec {host}"]
    command += map(str, rank_words("repeat_an_allreduce", COUNT, ROUNDS))
    done = network[0].run(*command, timeout=120, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    after = [network.byte_counters(host)[0] for host in (0, 1)]
    return [(b - a) / (4 * COUNT * ROUNDS) for a, b in zip(before, after)]


def test_hierarchical_sends_two_thirds_of_a_flat_ring(hosts):
    network = hosts(2)
    levels = sent_by_each_host(network)
    ring = sent_by_each_host(network, HOROVOD_BACKEND="tcp", HOROVOD_BACKEND_TCP_RING_RANKS="2")
    mesh = sent_by_each_host(network, HOROVOD_HIERARCHICAL_ALLREDUCE="0")
    print(f"sent by each host per allreduce of N bytes: hierarchical {levels}, ring {ring}, mesh {mesh}")
    # Headers and the start of the job come on top.
    for measured, theory in ((levels, 1.0), (ring, 1.5), (mesh, 2.0)):
        assert all(theory <= m <= theory * 1.06 + 0.02 for m in measured), (levels, ring, mesh)
    assert 0.62 < sum(levels) / sum(ring) < 0.70
