"""The live timeline's figures: what a page gets of real ranks, while they run and when one has died."""

import json
import re
import time

import pytest

import watched_ranks as ranks
from harness import launch, run_on_ranks
from hvd_core._observe.watch.job_figures import HostFigures
from hvd_core._observe.watch.shared_rings import Place, SharedRings


def test_a_page_sees_steps_stragglers_and_stalls():
    (steps, stalls), (of_rank_1, _) = run_on_ranks(2, ranks.seen_by_a_page).results
    for seen in (steps, of_rank_1):
        assert [rank["state"] for rank in seen["ranks"]] == ["runs", "runs"]
        assert [rank["lost"] for rank in seen["ranks"]] == [0, 0]
        # The last step has no successor that would end it.
        assert [rank["steps done"] for rank in seen["ranks"]] == [9, 9]
        tensors = {name: (count, size) for name, count, size, _ in seen["tensors"]}
        for i in range(3):
            assert tensors[f"allreduce.grad.{i}"] == (20, 20 * 4000)
        ((last, times, behind),) = seen["stragglers"]
        assert (last, behind > 0) == (1, True)
        assert times >= 10
        assert seen["ranks"][0]["steps"][5][2] >= 20_000
        assert "SHM_ALLREDUCE" in {name for name, _, _ in seen["collectives"]}
        assert {row for _, row, _, _, _ in seen["spans"]} == {0, 1, 2, 3}
        assert {rank for rank, *_ in seen["spans"]} == {0, 1}
        assert "SHM_ALLREDUCE" in seen["names"]
    assert [(s["name"], s["submitted"], s["missing"]) for s in stalls] == [("allreduce.stalled", [0], [1])]
    assert stalls[0]["age"] >= 2_000_000


def test_a_watcher_that_falls_behind_says_how_much_it_lacks():
    for seen in run_on_ranks(2, ranks.more_events_than_a_ring_holds).results:
        assert all(rank["lost"] > 3000 for rank in seen["ranks"])
        assert {name: count for name, count, *_ in seen["tensors"]}["allreduce.grad.0"] == 6
        assert all(rank["pending"] == 0 for rank in seen["ranks"])


def test_the_death_of_a_rank_is_seen_from_outside(tmp_path):
    job = launch(2, ranks.train_until_told, str(tmp_path / "place"), folder=tmp_path)
    try:
        _await((tmp_path / "place.whole").exists)
        pid, segment = json.loads((tmp_path / "place.whole").read_text())
        figures = HostFigures(SharedRings(Place(f"/proc/{pid}/fd/{segment}", 2)))
        figures.for_page(0)

        def seen():
            figures.read()
            return {rank["rank"]: rank for rank in figures.for_page(0)["ranks"]}

        _await(lambda: all(rank["steps done"] > 3 for rank in seen().values()))
        assert [rank["state"] for rank in seen().values()] == ["runs", "runs"]
        (tmp_path / "told.die").touch()
        _await(lambda: seen()[1]["state"] == "died")
        assert seen()[1]["pid"] == pid
        assert "allreduce.never done" in seen()[1]["not done"]
        _await(lambda: seen()[0]["state"] == "aborted")
        assert "rank 1" in seen()[0]["aborted"]
    finally:
        job.terminate()
        job.communicate(timeout=120)


@pytest.mark.slow
def test_a_page_keeps_up_with_a_thousand_tensors_a_second(tmp_path):
    """The real watcher is asked as a page asks. On a busy machine it may be kept from the processor for longer than a
    ring lasts; one that is too slow never sees so many tensors in a row."""
    token = tmp_path / "token"
    token.write_text("a-token-of-the-tests_0123")
    env = {"HOROVOD_TIMELINE_LIVE": "auto", "HOROVOD_WATCH_TOKEN_FILE": str(token)}
    job = launch(2, ranks.a_thousand_tensors_a_second, folder=tmp_path, env=env)
    try:
        said = ""
        while not (address := re.search(r"live timeline: (http://\S+/) ", said)):
            said += (line := job.stdout.readline())
            assert line, said
        last, since, lacks = 0, 0, None

        def has_seen_many():
            nonlocal last, since, lacks
            time.sleep(0.25)
            status, _, text = ranks.ask(f"{address[1]}data?after={last}", token.read_text())
            assert status == 200, text
            seen = json.loads(text)
            last = seen["last"]
            count = min((n for name, n, *_ in seen["tensors"] if name != "allreduce.stop"), default=0)
            now_lacks = [seen["skipped"], *(rank["lost"] for rank in seen["ranks"])]
            if now_lacks != lacks:
                since, lacks = count, now_lacks
            # Both ranks have done the steps since then.
            return (count - since) // 2 * ranks.STEP_TENSORS >= 3000

        _await(has_seen_many)
        (tmp_path / "told.stop").touch()
        assert job.wait(120) == 0
    finally:
        job.kill()
        job.communicate(timeout=120)


def _await(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)
