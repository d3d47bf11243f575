"""The real engine on several hosts: right results, training, and a host that is lost."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from namespaces import Network

pytest.importorskip("hvd_core._core", reason="the engine is not built")
pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pytorch_digits.py"
LAYOUTS = [(2, 2), (2, 1), (1, 2), (1, 1, 1)]

# Whole numbers, so that the order of the additions does not matter.
COLLECTIVES = """
import numpy as np
import hvd_core as hvd
hvd.init(process_sets="dynamic")
rank, size = hvd.rank(), hvd.size()
for dtype in (np.float32, np.float64, np.int32, np.float16):
    for count in (1, 3, 1000, 70_001):
        mine = [(np.arange(count) % 50 + one).astype(dtype) for one in range(size)]
        where = f"{np.dtype(dtype).name} x {count}"
        total = hvd.allreduce(mine[rank], op=hvd.Sum, name="sum " + where)
        assert np.array_equal(total, np.sum(mine, axis=0, dtype=dtype)), where
        most = hvd.allreduce(mine[rank], op=hvd.Max, name="max " + where)
        assert np.array_equal(most, mine[-1]), where
        for root in (0, size - 1):
            got = hvd.broadcast(mine[rank], root, name=f"from {root} " + where)
            assert np.array_equal(got, mine[root]), where
        parts = [np.full((one + 1, count % 7 + 1), one, dtype) for one in range(size)]
        got = hvd.allgather(parts[rank], name="gather " + where)
        assert np.array_equal(got, np.concatenate(parts)), where
        # One row to rank 0, two to rank 1, ...; rows carry where they come from and where they go.
        splits = list(range(1, size + 1))
        rows = [[np.full((count % 5 + 1,), 10 * one + to, dtype) for to in range(size) for _ in range(to + 1)]
                for one in range(size)]
        got, received = hvd.alltoall(np.stack(rows[rank]), splits, name="all " + where)
        wanted = [row for one in range(size) for row in rows[one][sum(splits[:rank]):sum(splits[:rank + 1])]]
        assert np.array_equal(got, np.stack(wanted)) and list(received) == [rank + 1] * size, where
        got = hvd.reducescatter(mine[rank], op=hvd.Sum, name="scatter " + where)
        shares = [count // size + (one < count % size) for one in range(size)]
        start = sum(shares[:rank])
        assert np.array_equal(got, np.sum(mine, axis=0, dtype=dtype)[start:start + shares[rank]]), where
average = hvd.allreduce(np.full(5, float(rank)))
assert average.tolist() == [(size - 1) / 2] * 5
# The same bits everywhere, although sums of these depend on the order.
chance = np.random.default_rng(rank).standard_normal(100_003).astype(np.float32)
total = hvd.allreduce(chance, op=hvd.Sum, name="noise")
totals = hvd.allgather(total.reshape(1, -1), name="totals")
assert all(np.array_equal(row, total) for row in totals)
# Sets of ranks: first and last, which are on different hosts; and all but the first.
ends, tail = hvd.add_process_set([0, size - 1]), hvd.add_process_set(range(1, size))
for chosen, ranks in ((ends, [0, size - 1]), (tail, list(range(1, size)))):
    if rank in ranks:
        got = hvd.allreduce(np.full(1000, 2.0**rank), op=hvd.Sum, name="in a set", process_set=chosen)
        assert got.tolist() == [sum(2.0**one for one in ranks)] * 1000
hvd.barrier()
print("right", hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
"""

# Reduces until something happens; then says what, how long after the last success, and whether the engine starts again.
LOOP = """
import os, signal, sys, time
import numpy as np
import hvd_core as hvd
hvd.init()
# The first to end leaves the others a second before their SIGTERM; on a busy machine they need more to say what they saw.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
data, steps = np.full(50_000, hvd.rank(), np.float32), 0
try:
    while True:
        hvd.allreduce(data, name="gradient")
        last, steps = time.monotonic(), steps + 1
        if steps == 10:
            open(f"ready.{hvd.rank()}", "w").write(f"{os.getpid()}\\n")
except hvd.HorovodInternalError as error:
    print(f"after {time.monotonic() - last:.2f} s: {error}", flush=True)
    sys.exit(5)
"""


@pytest.mark.parametrize("slots", LAYOUTS, ids=str)
def test_collectives_give_the_right_results(cluster, slots):
    made = cluster(*slots)
    done = made.python(sum(slots), COLLECTIVES, timeout=150)
    assert done.returncode == 0, done.stderr
    homes = [host for host, count in enumerate(slots) for _ in range(count)]
    expected = []
    for rank, home in enumerate(homes):
        local = homes[:rank].count(home)
        column = [host for host, count in enumerate(slots) if count > local]
        expected.append(f"[{rank}]<stdout>:right {local} {slots[home]} {column.index(home)} {len(column)}")
    assert sorted(done.stdout.splitlines()) == expected


def test_functions_meet_over_hosts(cluster):
    made = cluster(1, 1)
    code = f"""
import horovod
def work(scale):
    import numpy as np
    import hvd_core as hvd
    hvd.init()
    return hvd.rank(), hvd.allreduce(np.ones(2) * scale * (1 + hvd.rank()), op=hvd.Sum).tolist()
print(horovod.run(work, (10,), num_proc=2, hosts={made.network.spec(1, 1)!r}))
"""
    environment = made.environment({"HOROVOD_REMOTE_SHELL": "ip netns exec {host}"})
    done = made.network[0].run(sys.executable, "-c", code, env=environment, cwd=made.folder, check=False)
    assert done.stdout == "[(0, [30.0, 30.0]), (1, [30.0, 30.0])]\n", done.stderr


def test_training_on_two_hosts(cluster):
    for module in ("torch", "sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(module, reason="the example needs it")
    made = cluster(2, 1)
    options = ("--epochs", 6, "--output", made.folder / "out")
    done = made.run("-np", 3, sys.executable, EXAMPLE, *options, timeout=170)
    assert done.returncode == 0, done.stderr
    accuracy = float(re.search(r"accuracy.*?([0-9.]+) ?%", done.stdout)[1])
    assert accuracy > 90
    assert (made.folder / "out" / "checkpoint.pt").exists()


def lose(made, process, count, cut):
    """Cuts the last host off once all ranks work; returns (exit code, {rank: (seconds, error)})."""
    made.wait_for(count, "ready.", seconds=90)
    cut(made.network, len(made.network) - 1)
    out, err = process.communicate(timeout=100)
    assert b"Traceback" not in err, err
    said = re.findall(r"\[(\d+)\]<stdout>:after ([0-9.]+) s: (.*)", out.decode())
    return process.returncode, {int(rank): (float(seconds), text) for rank, seconds, text in said}


@pytest.mark.parametrize("cut", [Network.link_down, Network.unplug])
@pytest.mark.parametrize("slots", [(2, 2), (1, 1, 1)], ids=str)
def test_a_lost_host_is_reported_by_everybody_in_time(cluster, slots, cut):
    timeout_s, margin_s = 3, 25  # as for a busy machine
    made = cluster(*slots)
    count = sum(slots)
    lost = range(count - slots[-1], count)
    process = made.start_python(count, LOOP, env={"HOROVOD_GLOO_TIMEOUT_SECONDS": str(timeout_s)})
    code, said = lose(made, process, count, cut)
    assert code == 5
    assert sorted(said) == list(range(count)), said
    for rank, (seconds, text) in said.items():
        assert seconds < timeout_s + margin_s, (rank, seconds, text)
        # Each side names a rank of the other.
        others = [other for other in range(count) if (other in lost) != (rank in lost)]
        assert any(re.search(rf"\brank {other}\b", text) for other in others), (rank, text)
    assert made.wait_for_none() == []


def test_a_killed_rank_on_another_host_is_named_at_once(cluster):
    made = cluster(2, 1)
    process = made.start_python(3, LOOP)
    pids = made.wait_for(3, "ready.", seconds=90)
    os.kill(int(pids[2]), signal.SIGKILL)
    before = time.monotonic()
    out, err = process.communicate(timeout=100)
    assert time.monotonic() - before < 25  # and not after HOROVOD_GLOO_TIMEOUT_SECONDS, 30
    assert process.returncode == 128 + 9, err
    said = dict(re.findall(r"\[(\d+)\]<stdout>:after [0-9.]+ s: (.*)", out.decode()))
    assert said.keys() == {"0", "1"} and all("rank 2" in text for text in said.values()), said
    assert made.wait_for_none() == []
