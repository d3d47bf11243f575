"""Cores: no thread of a rank leaves those that the rank was given, and HOROVOD_THREAD_AFFINITY pins the engine's thread alone.

What is looked at is the kernel's own account of every thread, in real jobs: under taskset, under both MPIs' bindings.
"""

import json
import os
import re
import shutil
import sys

import pytest

import affinity_ranks
from harness import run_on_ranks, run_to_the_end
from hvd_core._bootstrap import affinity
from launchers import first_by

CORES = sorted(os.sched_getaffinity(0))
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def job(tmp_path, ranks, before=(), launcher=(), env=None, python=(sys.executable,)):
    """A launch of its own, for what ranks inherit; returns (reports by rank, all that was printed)."""
    launcher = launcher or [sys.executable, "-m", "horovod.runner.launch"]
    command = [*before, *launcher, "-np", str(ranks), *python]
    print_report = affinity_ranks.print_report
    output = run_to_the_end(ranks, print_report, folder=tmp_path, command=command, env=env, init=None)
    found = [json.loads(text) for text in re.findall(r"REPORT (\{.*\})", output)]
    assert len(found) == ranks, output
    return sorted(found, key=lambda report: report["rank"]), output


def reports_with(ranks, wish):
    """The same from living ranks, whose next engine has the setting."""
    outcome = run_on_ranks(ranks, affinity_ranks.report, env={"HOROVOD_THREAD_AFFINITY": wish}, init=None)
    return outcome.results, outcome.output


def engine_threads(report):
    return [affinity.from_text(cores) for name, cores in report["started"] if name == "hvd-engine"]


def check_kept_within(report):
    """Every thread is within what the rank was given; nothing is pinned but, perhaps, the engine's thread."""
    given = affinity.from_text(report["inherited"])
    assert report["cores"][report["local_rank"]] == sorted(given)
    assert len(engine_threads(report)) == 1
    for moment in ("started", "worked", "ended"):
        for name, cores in report[moment]:
            assert affinity.from_text(cores) <= given, (moment, name, cores, report)
            assert name == "hvd-engine" or affinity.from_text(cores) == given, (moment, name, cores, report)


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset (util-linux)")
@two_cores
def test_taskset_and_a_setting_that_does_not_widen_the_mask(tmp_path):
    wish = {"HOROVOD_THREAD_AFFINITY": f"{CORES[1]},{CORES[0]}"}
    reports, output = job(tmp_path, 2, before=["taskset", "-c", str(CORES[1])], env=wish)
    assert f"core {CORES[0]} for local rank 1, which may use {CORES[1]}" in output
    for report in reports:
        assert report["inherited"] == str(CORES[1])
        check_kept_within(report)
        assert report["cores"] == [[CORES[1]]] * 2


# The bindings of both MPIs are those of the next test.
@pytest.mark.mpi
@two_cores
@first_by("openmpi")
def test_mpirun_bound_to_cores(mpirun, tmp_path):
    option = "--bind-to" if len(mpirun) > 1 else "-bind-to"
    reports, _ = job(tmp_path, 2, launcher=[*mpirun, option, "core"])
    for report in reports:
        check_kept_within(report)
    # Hardware threads of one core may come together; two ranks never share.
    one, two = (affinity.from_text(report["inherited"]) for report in reports)
    assert one and two and not one & two
    # Each has a core of its own, which a glance at its own mask and the number of ranks would not tell.
    for report in reports:
        assert affinity.enough_cores(report["cores"], report["local_rank"])


@pytest.mark.mpi
@two_cores
def test_mpirun_several_ranks_on_a_core(mpirun, tmp_path):
    binding = ["--bind-to", "core:overload-allowed"] if len(mpirun) > 1 else ["-bind-to", "core"]
    ranks = len(CORES) + 1 if len(CORES) < 4 else 4
    before = ["taskset", "-c", ",".join(map(str, CORES[: ranks - 1]))]
    reports, _ = job(tmp_path, ranks, before=before, launcher=[*mpirun, *binding])
    for report in reports:
        check_kept_within(report)
    shared = [not affinity.enough_cores(report["cores"], report["local_rank"]) for report in reports]
    masks = [tuple(report["cores"][report["local_rank"]]) for report in reports]
    assert shared == [masks.count(mask) > len(mask) for mask in masks], masks
    assert any(shared)


@pytest.mark.mpi
@first_by("mpich")
def test_mpirun_bound_to_numa(mpirun, tmp_path):
    option = "--bind-to" if len(mpirun) > 1 else "-bind-to"
    reports, _ = job(tmp_path, 2, launcher=[*mpirun, option, "numa"])
    for report in reports:
        check_kept_within(report)


@two_cores
@pytest.mark.parametrize("through_flag", [False, True])
def test_a_core_for_each_local_rank(tmp_path, through_flag):
    wish = f"{CORES[1]},{CORES[0]}"
    if through_flag:
        launcher = [sys.executable, "-m", "horovod.runner.launch", "--thread-affinity", wish]
        reports, output = job(tmp_path, 2, launcher=launcher)
    else:
        reports, output = reports_with(2, wish)
    assert "HOROVOD_THREAD_AFFINITY" not in output
    for report, core in zip(reports, (CORES[1], CORES[0])):
        check_kept_within(report)
        assert engine_threads(report) == [frozenset([core])]


@two_cores
@pytest.mark.skipif(CORES[:2] != [CORES[0], CORES[0] + 1], reason="needs two neighbouring cores")
def test_a_single_number_counts_up():
    reports, _ = reports_with(2, str(CORES[0]))
    for report in reports:
        check_kept_within(report)
        assert engine_threads(report) == [frozenset([CORES[0] + report["local_rank"]])]


@pytest.mark.parametrize(
    "wish, said",
    [
        ("0,x", "'x' is not the number of a core"),
        ("-1,0", "'-1' is not the number of a core"),
        ("0,", "'' is not the number of a core"),
        (f"{CORES[0]},{CORES[-1] + 4096}", f"core {CORES[-1] + 4096} for local rank 1"),
        (str(CORES[-1]), f"core {CORES[-1] + 1} for local rank 1"),  # counts up to one that is not there
    ],
)
def test_wrong_values_are_said_once_and_change_nothing(wish, said):
    reports, output = reports_with(2, wish)
    assert output.count("HOROVOD_THREAD_AFFINITY=") == 1, output
    assert said in output and "local ranks 0 to 1" in output
    for report in reports:
        check_kept_within(report)
        assert engine_threads(report) == [frozenset(CORES)]


def test_one_core_for_two_ranks_is_odd_and_what_was_asked_for():
    reports, _ = reports_with(2, f"{CORES[0]},{CORES[0]}")
    assert [engine_threads(report) for report in reports] == [[frozenset(CORES[:1])]] * 2


def test_too_few_entries():
    reports, output = reports_with(3, f"{CORES[0]},{CORES[-1]}")
    assert output.count("it has 2 cores for 3 ranks") == 1, output
    assert all(engine_threads(report) == [frozenset(CORES)] for report in reports)


def test_one_process_without_a_launcher(tmp_path):
    env = {"HOROVOD_THREAD_AFFINITY": str(CORES[-1])}
    alone = [sys.executable]
    said = run_to_the_end(1, affinity_ranks.print_report, folder=tmp_path, command=alone, env=env, init=None)
    report = json.loads(said.partition("REPORT ")[2])
    check_kept_within(report)
    assert engine_threads(report) == [frozenset(CORES[-1:])]


@two_cores
def test_communicators_are_made_on_all_cores_of_the_process():
    # The driver has them made, and it may be the engine's pinned thread.
    wish = {"HOROVOD_THREAD_AFFINITY": f"{CORES[0]},{CORES[1]}", "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    run_on_ranks(2, affinity_ranks.check_where_communicators_are_made, env=wish, init=None)


# ------------------------------------------------------------------------------------------------------ the functions


@pytest.mark.parametrize("cores", [[], [3], [0, 1, 2, 5], [1, 3, 4, 70], list(range(300))])
def test_text_there_and_back(cores):
    text = affinity.to_text(cores)
    assert affinity.from_text(text) == frozenset(cores)
    assert text.count("-") == sum(1 for c in cores if c + 1 in cores and c - 1 not in cores)


def test_more_entries_than_ranks_are_fine():
    masks = [frozenset([4, 5]), frozenset([6])]
    assert affinity.engine_core("5, 6,7", masks, 0) == (5, None)
    assert affinity.engine_core("5, 6,7", masks, 1) == (6, None)
    assert affinity.engine_core("", masks, 0) == (None, None)


def test_enough_cores_of_a_large_host():
    wide = frozenset(range(1024))
    assert affinity.enough_cores([wide] * 1024, 5)
    assert not affinity.enough_cores([wide] * 1025, 5)
    assert not affinity.enough_cores([frozenset([0]), frozenset([0])], 0)
    assert affinity.enough_cores([frozenset([i]) for i in range(512)], 3)
