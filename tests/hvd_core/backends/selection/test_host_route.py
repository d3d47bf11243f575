"""The route of collectives on host memory, on one host and on several: names, lists, HOROVOD_HIERARCHICAL_*."""

from types import SimpleNamespace

import pytest

from hvd_core.backends.errors import BackendUnavailable
from hvd_core.types import COLLECTIVES
from listed_backends import (
    ECCL,
    MPI,
    ONE_HOST,
    ONE_HOST_BY_MPI,
    SHM,
    TCP,
    TWO_HOSTS,
    TWO_HOSTS_BY_MPI,
    ListedBackends,
    backend,
    plan,
)


def route(value, world, argument=None, allreduce=None, allgather=None):
    return plan(
        SHM, TCP, MPI, value=value, argument=argument, world=world, levels=(allreduce, allgather)
    ).host_route


def names(route):
    return route.within and route.within.name, route.between and route.between.name


@pytest.mark.parametrize(
    ("named", "expected"),
    [("", ("shm", None)), ("shm", ("shm", None)), ("tcp", (None, "tcp")), ("shm,tcp", ("shm", None))],
)
def test_on_one_host_one_backend_does_everything(named, expected):
    made = route(named, ONE_HOST)
    assert names(made) == expected and made.hierarchical == ()


def test_on_several_hosts_what_is_embedded_goes_over_two_levels():
    made = route("", TWO_HOSTS)
    assert names(made) == ("shm", "tcp") and made.within_alone and made.source == "automatic"
    assert set(made.hierarchical) == set(COLLECTIVES)


def test_a_list_names_both_levels():
    made = route("shm,mpi", TWO_HOSTS)
    assert names(made) == ("shm", "mpi") and made.within_alone and made.source == "HOROVOD_BACKEND"
    assert set(made.hierarchical) == set(COLLECTIVES)
    made = route(None, TWO_HOSTS, ["mpi", "shm"])
    assert names(made) == (None, "mpi") and made.hierarchical == ()


def test_one_name_is_flat():
    made = route("tcp", TWO_HOSTS)
    assert names(made) == (None, "tcp")
    with pytest.raises(BackendUnavailable, match="works within one host"):
        route("shm", TWO_HOSTS)


@pytest.mark.parametrize("named", ["", "mpi"])
@pytest.mark.parametrize("allreduce", [None, False, True])
@pytest.mark.parametrize("allgather", [None, False, True])
def test_horovods_variables_decide_for_their_operation(named, allreduce, allgather):
    made = route(named, TWO_HOSTS, None, allreduce, allgather)
    natural = not named
    assert ("allreduce" in made.hierarchical) == (natural if allreduce is None else allreduce)
    assert ("allgather" in made.hierarchical) == (natural if allgather is None else allgather)
    assert ("broadcast" in made.hierarchical) == natural
    assert (made.within is not None) == bool(made.hierarchical)
    if made.within:
        # A backend that was named alone serves sets on one host too.
        assert made.within_alone == natural


def test_between_hosts_goes_what_belongs_to_the_launchers_jobs():
    made = route("", TWO_HOSTS_BY_MPI)
    assert names(made) == ("shm", "mpi") and made.within_alone and made.source == "automatic"
    assert set(made.hierarchical) == set(COLLECTIVES)
    assert names(route("", TWO_HOSTS)) == ("shm", "tcp"), "started by horovodrun"
    assert names(route("tcp", TWO_HOSTS_BY_MPI)) == (None, "tcp")
    assert names(route("", TWO_HOSTS_BY_MPI, allreduce=False)) == ("shm", "mpi")
    assert "allreduce" not in route("", TWO_HOSTS_BY_MPI, allreduce=False).hierarchical
    # A backend named for devices leaves host memory to the automatic choice.
    made = plan(SHM, TCP, MPI, ECCL, value="eccl", world=TWO_HOSTS_BY_MPI)
    assert names(made.host_route) == ("shm", "mpi") and made.host_route.source == "automatic"
    # The site may have taken the embedded ones away.
    assert names(plan(MPI, world=TWO_HOSTS_BY_MPI).host_route) == (None, "mpi")
    assert names(plan(SHM, MPI, world=TWO_HOSTS_BY_MPI).host_route) == ("shm", "mpi")


def test_a_process_manager_that_is_used_up_starts_no_mpi():
    """Slurm's PMI-1, which the rendezvous has used: MPI would end the job."""
    spent = SimpleNamespace(**{**vars(TWO_HOSTS_BY_MPI), "launcher_used_up": True})
    assert names(route("", spent)) == ("shm", "tcp")


def test_on_hosts_with_different_numbers_of_ranks_it_takes_all_of_them():
    """All ranks have to start a launcher's library, those too that would not take part between hosts."""
    uneven = SimpleNamespace(
        **{**vars(TWO_HOSTS_BY_MPI), "hosts": (0, 0, 1), "host_names": ("alpha", "alpha", "beta")}
    )
    for value in (None, "shm,mpi"):
        made = plan(SHM, TCP, MPI, value=value, world=uneven).host_route
        assert made.within is None and made.between.name == "mpi"
    assert plan(SHM, TCP, value="shm,tcp", world=uneven).host_route.within.name == "shm"


@pytest.mark.parametrize(("hosts", "within"), [((0, 0, 1), None), ((0, 0, 1, 1, 1), "mpi")])
def test_a_launchers_library_is_not_used_within_hosts_if_a_rank_would_not_start_it(hosts, within):
    """A rank that is alone on its host has nothing to do within it. Such a backend does not encrypt between hosts."""
    mpi = backend(
        "mpi", "hvd-backend-mpi 0.2.0", launchers=("openmpi",), spans_hosts=False, kept_within="kept"
    )
    names = tuple("alpha" if host == 0 else "beta" for host in hosts)
    world = SimpleNamespace(**{**vars(TWO_HOSTS_BY_MPI), "hosts": hosts, "host_names": names})
    made = plan(SHM, TCP, mpi, value="mpi,tcp", world=world).host_route
    assert (made.within and made.within.name, made.between.name) == (within, "tcp")


def test_on_one_host_nobody_looks_for_it():
    installed = ListedBackends(SHM, TCP, MPI)
    made = plan(installed=installed, world=ONE_HOST_BY_MPI, value="cpu=shm")
    assert names(made.host_route) == ("shm", None)
    installed.of_launcher = None  # a call would raise
    assert names(plan(installed=installed, world=ONE_HOST_BY_MPI).host_route) == ("shm", None)
    assert names(plan(installed=installed, world=None).host_route) == ("shm", None)


def test_for_devices_it_must_be_named():
    assert [d.type for d in plan(SHM, TCP, MPI, world=TWO_HOSTS_BY_MPI).devices] == []
