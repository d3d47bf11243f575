"""Ranks that have chosen differently: the whole message on each of them."""

from dataclasses import replace

from golden_texts import golden
from hvd_core._bootstrap.launchers import named
from hvd_core.backends._selection.agreement import compare, failure, statement, warnings
from listed_backends import ECCL, MPI, SHM, TCP, TWO_HOSTS, TWO_HOSTS_BY_MPI, ListedBackends, plan

OPEN_MPI, MPICH = named("openmpi").setting_option, named("mpich").setting_option
HOSTS = ("node01", "node01", "node02", "node02", "node03", "node03", "node04", "node04")
NAMED = {"HOROVOD_BACKEND": "eccl"}


def said(made, environ=NAMED, sets=""):
    return statement(made, environ, sets)


def with_eccl(backend, value="eccl"):
    return plan(SHM, TCP, MPI, backend, value=value)


def last_differs(usual, other):
    return compare([usual] * 7 + [other], HOSTS, OPEN_MPI)


def test_equal_answers_are_no_disagreement():
    one = said(with_eccl(ECCL))
    assert last_differs(one, one) == ""
    # The source of the choice is shown, not compared.
    assert last_differs(said(plan(SHM, value="shm")), said(plan(SHM), {})) == ""


def test_versions():
    older = replace(ECCL, version="0.3.0", vendor_lib="libeccl 3.0.2")
    golden("disagree_versions", last_differs(said(with_eccl(ECCL)), said(with_eccl(older))))


def test_only_the_abi():
    newer = replace(ECCL, abi=(1, 1))
    golden("disagree_abi", last_differs(said(with_eccl(ECCL)), said(with_eccl(newer))))


def test_the_variable_is_unset_on_some_ranks():
    usual, lost = said(with_eccl(ECCL)), said(plan(SHM, TCP), {})
    golden("disagree_unset", compare([usual] * 6 + [lost] * 2, HOSTS, OPEN_MPI))


def test_several_device_types():
    other = plan(SHM, TCP, MPI, ECCL, value="tcp,gcu=eccl,gcu.allgather=shm,cpu.allgather=shm")
    golden("disagree_table", last_differs(said(with_eccl(ECCL)), said(other)))


def test_on_several_hosts():
    flat = plan(SHM, TCP, value="tcp", world=TWO_HOSTS)
    golden("disagree_hierarchy", last_differs(said(plan(SHM, TCP, world=TWO_HOSTS), {}), said(flat)))


def test_a_backend_that_one_host_lacks():
    golden("disagree_missing", last_differs(said(plan(SHM, TCP, ECCL), {}), said(plan(SHM, TCP), {})))


def test_ranks_that_failed():
    down = failure("horovod: backend 'eccl' is installed but unavailable here: no device.", "error", NAMED)
    golden("disagree_failed", last_differs(said(with_eccl(ECCL)), down))
    golden("disagree_all_failed", compare([down], HOSTS, OPEN_MPI))
    unset = failure("horovod: backend 'eccl' (from user.toml:1) is not installed.", "error", {})
    golden("disagree_failed_unset", last_differs(said(with_eccl(ECCL)), unset))


def test_process_sets():
    usual, other = said(plan(SHM), {}, "[0, 1]"), said(plan(SHM), {}, "")
    golden("disagree_sets", last_differs(usual, other))
    bad = failure("The ranks of a ProcessSet must be integers.", "init(process_sets=...)", {})
    golden("disagree_sets_failed", last_differs(usual, bad))


def test_how_each_launcher_hands_on_a_variable():
    usual, lost = said(with_eccl(ECCL)), said(plan(SHM, TCP), {})
    told = [
        compare([usual, lost], HOSTS, named(launcher).setting_option).partition("fix: ")[2]
        for launcher in ("openmpi", "mpich", "srun", "torchrun", "pmix")
    ]
    assert told == [
        "mpirun -x HOROVOD_BACKEND, or set it in every rank's environment",
        "mpirun -genv HOROVOD_BACKEND VALUE, or set it in every rank's environment",
        "srun --export=ALL,HOROVOD_BACKEND=VALUE, or set it in every rank's environment",
        "set it in every rank's environment, on every host",
        "set it in every rank's environment, on every host",
    ]


def test_a_switch_that_some_ranks_have_not():
    usual, lost = (said(plan(SHM), env) for env in ({"HOROVOD_DYNAMIC_PROCESS_SETS": "true"}, {}))
    golden("disagree_switch", compare([usual] * 6 + [lost] * 2, HOSTS, OPEN_MPI))
    # Unset and what unset means are the same.
    assert last_differs(lost, said(plan(SHM), {"HOROVOD_EMULATION": "1"})) == ""


def test_tuning_that_differs_is_told_and_no_error():
    usual, lost = (said(plan(SHM), env) for env in ({"HOROVOD_FUSION_THRESHOLD": "1048576"}, {}))
    answers = [usual] * 6 + [lost] * 2
    assert compare(answers, HOSTS, MPICH) == ""
    golden("warn_tuning", "\n".join(warnings(answers, HOSTS, MPICH)))
    assert warnings([usual] * 8, HOSTS, MPICH) == []


def test_another_value_of_the_same_variable():
    one, other = (said(plan(SHM, TCP, value=v), {"HOROVOD_BACKEND": v}) for v in ("shm", "tcp"))
    golden("disagree_values", last_differs(one, other))


def test_what_belongs_to_the_launcher_is_there_on_some_hosts_only():
    usual = said(plan(SHM, TCP, MPI, world=TWO_HOSTS_BY_MPI), {})
    installed = ListedBackends(SHM, TCP)
    installed.unused_between = (
        "openmpi started this job, but backend 'mpi' is installed but unavailable here: no libmpi"
    )
    golden(
        "disagree_launcher", last_differs(usual, said(plan(installed=installed, world=TWO_HOSTS_BY_MPI), {}))
    )
