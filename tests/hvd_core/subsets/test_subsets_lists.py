"""init(comm=[ranks]): jobs of a part of the launcher's ranks, several at once, one after the other; and lists that are
wrong. Started by horovodrun, with its store, and by mpirun, with a rendezvous on the host."""

import sys

import pytest

import subset_jobs
from launchers import first_by

pytestmark = pytest.mark.timeout(320)


def expected(members, me):
    """The report of a rank in a job of ``members`` on one host."""
    rank, size = members.index(me), len(members)
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    seen = dict(zip(names, (rank, size, rank, size, 0, 1), strict=True))
    return seen | {"total": sum(10**member for member in members), "who": members}


def check_lists(said):
    for me, report in enumerate(said):
        parts = [[0, 2] if me in (0, 2) else [3, 1], [1, 0] if me < 2 else [2, 3], [me], [0, 1, 2, 3]]
        assert report["seen"] == [expected(part, me) for part in parts]
        asked, running = parts[1][::-1], parts[1]
        assert report["other"].startswith(
            f"ValueError: horovod: init(comm=...) names {asked}, but this process is in"
        )
        assert f"a job of ranks {running} already. Call shutdown() first." in report["other"]


def check_disagreement(said):
    """All members of lists that contradict hear of it, on either side, in the same words."""
    pairs = [("[0, 1]", 0, "[1, 0]", 1), ("[0, 1]", 0, "[1, 2, 0]", 1), ("[2, 1, 0]", 2, "[1, 2]", 1)]
    for turn, (one, who, other, whom) in enumerate(pairs):
        (low, first), (high, second) = sorted([(who, one), (whom, other)])
        text = "MembersDisagree: horovod: ranks do not agree on init(comm=...).  "
        text += f"rank {low}: {first}; rank {high}: {second}"
        heard = [report["texts"][turn] for report in said if report["texts"][turn] is not None]
        assert len(heard) == (2 if turn == 0 else 3)
        assert all(part.startswith(text) and "fix: give all members" in part for part in heard), heard
    # Rank 1 and another one notice first. A rank that comes when both have begun again agrees with them.
    told = {report["me"]: report["texts"][3] for report in said if report["texts"][3] != "nothing"}
    assert 1 in told and len(told) >= 2, said
    for text in told.values():
        assert (
            "ranks do not agree on init(comm=...)." in text
            and "rank 1: [1, 2]" in text
            and "all ranks" in text
        ), text
    for report in said:
        assert report["seen"] == expected([0, 1, 2], report["me"])


def test_jobs_of_parts_under_horovodrun():
    check_lists(subset_jobs.run(subset_jobs.HOROVODRUN, 4, "lists"))


def test_two_jobs_train_at_once():
    said = subset_jobs.run(subset_jobs.HOROVODRUN, 4, "training")
    for report, slope in zip(said, (2.0, 2.0, -3.0, -3.0), strict=True):
        assert report["weight"] == pytest.approx([slope, 1.0], abs=0.01)
        assert report["weights"] == [report["weight"]] * 2  # to the last bit


def test_lists_that_make_no_sense_are_refused():
    for me, report in enumerate(subset_jobs.run(subset_jobs.HOROVODRUN, 3, "refused")):
        starts = (
            "init(comm=[0, 0]) names rank 0 more than once",
            "init(comm=[0, 3]) names rank 3, but the job that horovodrun started has ranks 0 to 2",
            "init(comm=[-1, 0]) names rank -1, but",
            "init(comm=...): the ranks must be integers, but found ['0']",
            "init(comm=...): the ranks must be integers, but found [0.5]",
            "init(comm=...) must be None, a list of ranks or an mpi4py communicator, but is of type int",
            f"init(comm=[{(me + 1) % 3}]) was called by rank {me}, which is not in the list",
            "init(comm=...) must be None, a list of ranks or an mpi4py communicator, but is of type object",
            "init(comm=...) must be None, a list of ranks or an mpi4py communicator, but is of type str",
        )
        for text, start in zip(report["texts"], starts, strict=True):
            assert text.startswith("ValueError: horovod: " + start), text
        assert report["seen"] == expected([0, 1, 2], me)


def test_lists_that_contradict_are_told_under_horovodrun():
    check_disagreement(subset_jobs.run(subset_jobs.HOROVODRUN, 3, "disagree"))


@pytest.mark.mpi
@first_by("openmpi")
def test_lists_that_contradict_are_told_under_mpirun(mpirun):
    check_disagreement(subset_jobs.run(mpirun, 3, "disagree"))


def test_parts_of_a_job_on_several_hosts():
    env = {"HOROVOD_SIMULATED_HOSTS": "0,1,0,1"}
    for me, report in enumerate(subset_jobs.run(subset_jobs.HOROVODRUN, 4, "on_hosts", **env)):
        across = [0, 1] if me < 2 else [3, 2]
        split = {
            "local_rank": 0,
            "local_size": 1,
            "cross_rank": across.index(me),
            "cross_size": 2,
            "hosts": [0, 1],
        }
        backends = report["across"].pop("backends")
        assert report["across"] == expected(across, me) | split
        assert "tcp" in " ".join(map(str, backends)), backends
        assert report["within"] == expected([0, 2] if me % 2 == 0 else [3, 1], me)


@pytest.mark.slow
def test_jobs_of_parts_under_torchrun():
    pytest.importorskip("torch", reason="torchrun comes with it")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node"]
    said = subset_jobs.run(launcher, 4, "lists")
    check_lists(said)
