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

pytestmark = [pytest.mark.netns, pytest.mark.timeout(400)]

COUNT, ROUNDS = 1 << 20, 12
PROGRAM = f"""
import sys, zlib
import numpy as np
import hvd_core as hvd
hvd.init()
rng = np.random.default_rng(hvd.rank())
x = rng.standard_normal({COUNT}).astype(np.float32)
for _ in range({ROUNDS}):
    y = hvd.allreduce(x, name="x", op=hvd.Sum)
sums = hvd.allgather(np.array([zlib.crc32(y.tobytes())], dtype=np.int64))
assert (sums == sums[0]).all(), sums
want = sum(np.random.default_rng(r).standard_normal({COUNT}).astype(np.float32).astype(np.float64) for r in range(4))
assert np.allclose(y, want, rtol=1e-5, atol=1e-5)
hvd.barrier()
"""


def sent_by_each_host(network, tmp_path, **environment):
    """Bytes per allreduce, in units of the array's size."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    before = [network.byte_counters(host)[0] for host in (0, 1)]
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "4", "-H", network.spec(2, 2)]
    command += ["--remote-shell", "ip netns exec {host}", sys.executable, str(program)]
    done = network[0].run(*command, timeout=120, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    after = [network.byte_counters(host)[0] for host in (0, 1)]
    return [(b - a) / (4 * COUNT * ROUNDS) for a, b in zip(before, after)]


def test_hierarchical_sends_two_thirds_of_a_flat_ring(hosts, tmp_path):
    network = hosts(2)
    levels = sent_by_each_host(network, tmp_path)
    ring = sent_by_each_host(network, tmp_path, HOROVOD_BACKEND="tcp", HOROVOD_BACKEND_TCP_RING_RANKS="2")
    mesh = sent_by_each_host(network, tmp_path, HOROVOD_HIERARCHICAL_ALLREDUCE="0")
    print(f"sent by each host per allreduce of N bytes: hierarchical {levels}, ring {ring}, mesh {mesh}")
    # Headers and the start of the job come on top.
    for measured, theory in ((levels, 1.0), (ring, 1.5), (mesh, 2.0)):
        assert all(theory <= m <= theory * 1.06 + 0.02 for m in measured), (levels, ring, mesh)
    assert 0.62 < sum(levels) / sum(ring) < 0.70
