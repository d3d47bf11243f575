"""Elastic jobs on two hosts, one of which is lost or announces its end."""

import signal
import sys
from pathlib import Path

import pytest

from launchers import send_each

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(300)]

RANKS = str(Path(__file__).resolve().parents[2] / "horovod/runner" / "elastic_ranks.py")
WORDS = ("-np", 4, "--min-np", 1, "--blacklist-cooldown-range", 3000, 3600)


def start(made, program, *words):
    environment = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"}
    return made.start(*WORDS, *words, sys.executable, RANKS, program, env=environment)


def finish(made, process):
    (made.folder / "enough").touch()
    out, err = (data.decode() for data in process.communicate(timeout=200))
    assert process.returncode == 0, err
    assert made.wait_for_none() == []
    return out, err


def test_training_goes_on_when_a_host_is_lost(cluster):
    """Its network is silent from one moment to the next, and its processes are gone, as if it had lost its power."""
    made = cluster(2, 2)
    process = start(made, "count_steps")
    made.wait_for(4, "in.4.rank")
    lost = made.network[1]
    made.network.unplug(1)
    send_each(signal.SIGKILL, made.network.pids(1))
    made.wait_for(2, "in.2.rank")
    out, err = finish(made, process)
    assert sorted(line.partition(":")[2] for line in out.splitlines()) == [
        "rank 0 of 2 is done, some steps",
        "rank 1 of 2 is done, some steps",
    ]
    assert f"lost the host '{lost.name}' with ranks" in err


def test_a_host_with_the_first_ranks_may_be_lost_too(cluster):
    """The ranks 0 and 1 are on the host that is lost. horovodrun runs on the other one."""
    made = cluster(2, 2)
    first, second = made.network
    made.options = ("-H", f"{second.name}:2,{first.name}:2", *made.options[2:])
    process = start(made, "count_steps")
    made.wait_for(4, "in.4.rank")
    made.network.unplug(1)
    send_each(signal.SIGKILL, made.network.pids(1))
    made.wait_for(2, "in.2.rank")
    out, _ = finish(made, process)
    assert len(out.splitlines()) == 2


def test_a_host_that_announces_its_end_is_left_and_no_step_is_lost(cluster):
    """All processes of the host get SIGTERM at once, as when a machine is shut down."""
    made = cluster(2, 2)
    process = start(made, "count_executed_steps", "--preemption-grace", 200)
    made.wait_for(4, "in.4.rank")
    send_each(signal.SIGTERM, made.network.pids(1))
    made.wait_for(2, "in.2.rank")
    out, err = finish(made, process)
    # Both announcements may have come to the driver before the same commit, or one after the other.
    assert out.count("all executed steps count") == 2
    assert err.count("has got SIGTERM: it leaves at its next commit") == 2
    assert "has ended" not in err
