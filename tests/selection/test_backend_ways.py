"""Which way collectives on host memory go on one host and on several: names, lists, HOROVOD_HIERARCHICAL_*."""

import pytest

from hvd_core.backends.errors import BackendUnavailable
from hvd_core.backends.plan import COLLECTIVES
from listed_stock import MPI, ONE_HOST, SHM, TCP, TWO_HOSTS, plan


def ways(value, world, argument=None, allreduce=None, allgather=None):
    return plan(
        SHM, TCP, MPI, value=value, argument=argument, world=world, levels=(allreduce, allgather)
    ).ways


def names(ways):
    return ways.within and ways.within.name, ways.between and ways.between.name


@pytest.mark.parametrize(
    ("named", "expected"),
    [("", ("shm", None)), ("shm", ("shm", None)), ("tcp", (None, "tcp")), ("shm,tcp", ("shm", None))],
)
def test_on_one_host_one_backend_does_everything(named, expected):
    made = ways(named, ONE_HOST)
    assert names(made) == expected and made.hierarchical == ()


def test_on_several_hosts_what_is_embedded_goes_over_two_levels():
    made = ways("", TWO_HOSTS)
    assert names(made) == ("shm", "tcp") and made.within_alone and made.source == "automatic"
    assert set(made.hierarchical) == set(COLLECTIVES)
    assert made.describe() == "shm within hosts, tcp between them"


def test_a_list_names_both_levels():
    made = ways("shm,mpi", TWO_HOSTS)
    assert names(made) == ("shm", "mpi") and made.within_alone and made.source == "HOROVOD_BACKEND"
    assert set(made.hierarchical) == set(COLLECTIVES)
    made = ways(None, TWO_HOSTS, ["mpi", "shm"])
    assert names(made) == (None, "mpi") and made.hierarchical == ()


def test_one_name_is_flat():
    made = ways("tcp", TWO_HOSTS)
    assert names(made) == (None, "tcp") and made.describe() == "tcp"
    with pytest.raises(BackendUnavailable, match="works within one host"):
        ways("shm", TWO_HOSTS)


@pytest.mark.parametrize("named", ["", "mpi"])
@pytest.mark.parametrize("allreduce", [None, False, True])
@pytest.mark.parametrize("allgather", [None, False, True])
def test_horovods_variables_decide_for_their_operation(named, allreduce, allgather):
    made = ways(named, TWO_HOSTS, None, allreduce, allgather)
    natural = not named
    assert ("allreduce" in made.hierarchical) == (natural if allreduce is None else allreduce)
    assert ("allgather" in made.hierarchical) == (natural if allgather is None else allgather)
    assert ("broadcast" in made.hierarchical) == natural
    assert (made.within is not None) == bool(made.hierarchical)
    if made.within:
        # A backend that was named alone serves sets on one host too.
        assert made.within_alone == natural


def test_the_description_names_what_is_flat():
    assert ways("", TWO_HOSTS, None, False).describe() == (
        "shm within hosts, tcp between them (flat: allreduce)"
    )
