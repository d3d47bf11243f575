"""init(comm=<mpi4py communicator>), process sets from communicators, and lists of ranks with a rendezvous on the host
and over MPI: under both MPIs, on one host."""

import functools

import pytest

import subset_jobs
from test_subsets_lists import check_lists, expected

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(320)]


@functools.cache
def _run(mpirun):
    return subset_jobs.run(mpirun, 4, "under_mpirun")


def said(mpirun, scenario):
    """What the ranks saw in one of the scenarios of under_mpirun(). All tests look at one launch: its interpreters would
    cost each of them most of its time."""
    return [report[scenario] for report in _run(tuple(mpirun))]


def test_jobs_of_lists_need_no_mpi4py(mpirun):
    check_lists(said(mpirun, "lists"))
    assert said(mpirun, "before") == [False] * 4


def test_jobs_of_communicators(mpirun):
    for me, report in enumerate(said(mpirun, "communicators")):
        parts = [[0, 1, 2, 3], [2, 0] if me % 2 == 0 else [3, 1], [me]]
        parts += [[0, 2]] if me % 2 == 0 else []
        assert report["seen"] == [expected(part, me) for part in parts]
        assert report["kept"] and report["exchanged"] == (me - 1) % 4 and report["left"] == [False, 4]
        texts = report["texts"]
        assert me % 2 == 0 or texts["null"].startswith(
            "ValueError: horovod: init(comm=...) was given MPI.COMM_NULL"
        )
        assert texts["inter"].startswith("ValueError: horovod: init: an intercommunicator joins two groups")
        assert "is of type Group" in texts["group"]
        other = "ValueError: horovod: init(comm=...) names an MPI communicator of other processes, but this process is in"
        assert texts["again"].startswith(other)


def test_process_sets_of_communicators(mpirun):
    for me, report in enumerate(said(mpirun, "process_sets")):
        number, ranks = (2, [1, 3]) if me % 2 == 0 else (1, [0, 2])
        rank = 3 - me
        assert report["rank"] == rank
        # One entry of the list was split: it stands for two sets, and the others know only their own.
        assert report["told"] == [
            [number, ranks, True],
            [3, [0, 3], rank in (0, 3)],
            [4, [1, 2, 3], rank != 0],
        ]
        assert report["sums"] == (101 if me % 2 == 0 else 1010)
        assert (report["same"], report["ended"], report["back"]) == (number, None, number)
        dynamic, no_comm, twice, crossed = report["texts"]
        assert dynamic.startswith("ValueError: Process sets can only be added")
        assert no_comm.startswith(
            "NotImplementedError: horovod: process sets that an MPI communicator defines need a job"
        )
        assert (
            twice.startswith("ValueError: init(process_sets=...): entry 0") and "global process set" in twice
        )
        assert crossed.startswith(
            "ValueError: horovod: init(process_sets=...): entry 0 is a communicator of ranks"
        )


def test_a_communicator_is_enough_to_make_a_job(mpirun):
    """The program has imported mpi4py, with a library that the test names, before it calls init()."""
    reports = subset_jobs.run(mpirun, 2, "without_launcher_variables", **subset_jobs.library_of(mpirun))
    for me, report in enumerate(reports):
        assert report["seen"] == expected([0, 1], me) and report["launcher"] == "mpi"


def test_lists_that_meet_over_mpi(mpirun):
    """As between hosts. mpi4py is left to find the library of the launcher."""
    for me, report in enumerate(said(mpirun, "mpi_lists")):
        everybody = [0, 1, 2, 3]
        parts = [[0, 2] if me in (0, 2) else [3, 1], [1, 0] if me < 2 else [2, 3], everybody, everybody]
        assert report["seen"] == [expected(part, me) for part in parts]
        if me < 2:
            assert "rank 0: [0, 1]; rank 1: [1, 0]" in report["texts"][0]


def test_mpi_that_does_not_know_of_the_job_is_told():
    """mpi4py under horovodrun's own ranks: each would be a world of its own."""
    reports = subset_jobs.run(subset_jobs.HOROVODRUN, 2, "alone", **subset_jobs.any_library())
    for me, report in enumerate(reports):
        text = f"BootstrapError: horovod: horovodrun says this is rank {me} of 2, MPI says 0 of 1: horovodrun does not"
        assert report["text"].startswith(text) and "horovodrun --mpi" in report["text"]
