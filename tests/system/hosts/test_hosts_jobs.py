"""The real engine on several hosts: right results, training, and a host that is lost."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

import host_programs
from harness.frameworks import python_of
from harness.installed import need
from host_words import rank_words
from launchers import program_words
from namespaces import Network

pytest.importorskip("hvd_core._core", reason="the engine is not built")
pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "pytorch_digits.py"
LAYOUTS = [(2, 2), (2, 1), (1, 2), (1, 1, 1)]


@pytest.mark.parametrize("slots", LAYOUTS, ids=str)
def test_collectives_give_the_right_results(cluster, slots):
    made = cluster(*slots)
    done = made.run("-np", sum(slots), *rank_words("collectives"))
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
    environment = made.environment({"HOROVOD_REMOTE_SHELL": "ip netns exec {host}"})
    words = program_words(host_programs.run_a_function_that_sums, made.network.spec(1, 1))
    done = made.network[0].run(*words, env=environment, cwd=made.folder, check=False)
    assert done.stdout == "[(0, [30.0, 30.0]), (1, [30.0, 30.0])]\n", done.stderr


@pytest.mark.slow
def test_training_on_two_hosts(cluster):
    need("torch", "sklearn", "matplotlib", "tqdm", reason="the example needs them")
    made = cluster(2, 1)
    # With these rates four epochs bring 95 %.
    options = ("--epochs", 4, "--warmup-epochs", 1, "--lr", 0.06, "--output", made.folder / "out")
    done = made.run("-np", 3, python_of("torch"), EXAMPLE, *options, timeout=170)
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
    process = made.start(
        "-np",
        count,
        *rank_words("reduce_until_something_happens"),
        env={"HOROVOD_GLOO_TIMEOUT_SECONDS": str(timeout_s)},
    )
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
    process = made.start("-np", 3, *rank_words("reduce_until_something_happens"))
    pids = made.wait_for(3, "ready.", seconds=90)
    os.kill(int(pids[2]), signal.SIGKILL)
    before = time.monotonic()
    out, err = process.communicate(timeout=100)
    assert time.monotonic() - before < 25  # and not after HOROVOD_GLOO_TIMEOUT_SECONDS, 30
    assert process.returncode == 128 + 9, err
    said = dict(re.findall(r"\[(\d+)\]<stdout>:after [0-9.]+ s: (.*)", out.decode()))
    assert said.keys() == {"0", "1"} and all("rank 2" in text for text in said.values()), said
    assert made.wait_for_none() == []
