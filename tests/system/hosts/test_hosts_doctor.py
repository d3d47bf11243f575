"""`hvd doctor --job` on any host of a job tells of the ranks on all of them."""

import json
import sys
import time

import pytest

from host_words import rank_words

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]


def ask_until(made, index, found):
    """What the command prints on that host, as soon as found(its JSON document) is true."""
    command = (sys.executable, "-m", "hvd_core._cli", "doctor", "--job")
    end = time.monotonic() + 120
    while True:
        done = made.network[index].run(*command, "--json", env=made.environment(), check=False)
        if done.returncode == 0 and found(json.loads(done.stdout)):
            return made.network[index].run(*command, env=made.environment()).stdout
        assert time.monotonic() < end, (done.stdout, done.stderr)


def is_whole(document):
    names = [rank["rank"] for rank in document["ranks"]]
    return names == [0, 1, 2] and document["report"] is not None and document["no answer"] == []


def test_every_host_hears_of_all_ranks(cluster):
    made = cluster(1, 2)
    process = made.start("-np", 3, *rank_words("wait_for_rank_0"))
    made.wait_for(3, "ready.", seconds=90)
    for index in (1, 0):
        text = ask_until(made, index, is_whole)
        assert "3 ranks on 2 hosts" in text
        assert "\n  0: [allreduce.loss]\n" in text, text
        assert "in _until_asked: time.sleep(0.05)" in text, text
        for rank in range(3):
            assert f"\nrank {rank} (host {made.network[min(rank, 1)].name}, pid " in text, text
    (made.folder / "asked").touch()
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert sorted(out.decode().splitlines()) == [f"[{rank}]<stdout>:right" for rank in range(3)]
