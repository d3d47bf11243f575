"""Which way collectives go on one host and on several: names, lists, HOROVOD_HIERARCHICAL_*, descriptions."""

from types import SimpleNamespace

import pytest

from hvd_core.backends.errors import BackendUnavailable
from hvd_core.backends.registry import InstalledBackend
from hvd_core.backends.ways import COLLECTIVES, choose_ways


@pytest.fixture
def available(tmp_path):
    names = (("shm", False), ("tcp", True), ("vendor", True))
    found = []
    for name, spans in names:
        library = tmp_path / f"lib{name}.so"
        library.touch()
        found.append(InstalledBackend(name, str(library), "embedded", spans, automatic=name != "vendor"))
    return tuple(found)


ONE = SimpleNamespace(hosts=(0, 0), host_names=("a", "a"), rank=0)
TWO = SimpleNamespace(hosts=(0, 0, 1), host_names=("a", "a", "b"), rank=0)


def names(ways):
    return ways.within and ways.within.name, ways.between and ways.between.name


@pytest.mark.parametrize(
    ("named", "expected"),
    [("", ("shm", None)), ("shm", ("shm", None)), ("tcp", (None, "tcp")), ("shm,tcp", ("shm", None))],
)
def test_on_one_host_one_backend_does_everything(available, named, expected):
    ways = choose_ways({"HOROVOD_BACKEND": named}, ONE, available=available)
    assert names(ways) == expected and ways.hierarchical == ()


def test_on_several_hosts_what_is_embedded_goes_over_two_levels(available):
    ways = choose_ways({}, TWO, available=available)
    assert names(ways) == ("shm", "tcp") and ways.within_alone and ways.source == "automatic"
    assert set(ways.hierarchical) == set(COLLECTIVES)
    assert ways.describe() == "shm within hosts, tcp between them"


def test_a_list_names_both_levels(available):
    ways = choose_ways({"HOROVOD_BACKEND": "shm,vendor"}, TWO, available=available)
    assert names(ways) == ("shm", "vendor") and ways.within_alone and ways.source == "HOROVOD_BACKEND"
    assert set(ways.hierarchical) == set(COLLECTIVES)
    ways = choose_ways({}, TWO, ["vendor", "shm"], available=available)
    assert names(ways) == (None, "vendor") and ways.hierarchical == ()


def test_one_name_is_flat(available):
    ways = choose_ways({"HOROVOD_BACKEND": "tcp"}, TWO, available=available)
    assert names(ways) == (None, "tcp") and ways.describe() == "tcp"
    with pytest.raises(BackendUnavailable, match="works within one host"):
        choose_ways({"HOROVOD_BACKEND": "shm"}, TWO, available=available)


@pytest.mark.parametrize("named", ["", "vendor"])
@pytest.mark.parametrize("allreduce", [None, False, True])
@pytest.mark.parametrize("allgather", [None, False, True])
def test_horovods_variables_decide_for_their_operation(available, named, allreduce, allgather):
    ways = choose_ways({"HOROVOD_BACKEND": named}, TWO, None, allreduce, allgather, available)
    natural = not named
    assert ("allreduce" in ways.hierarchical) == (natural if allreduce is None else allreduce)
    assert ("allgather" in ways.hierarchical) == (natural if allgather is None else allgather)
    assert ("broadcast" in ways.hierarchical) == natural
    assert (ways.within is not None) == bool(ways.hierarchical)
    if ways.within:
        # A backend that was named alone serves sets on one host too.
        assert ways.within_alone == natural


def test_the_description_names_what_is_flat(available):
    ways = choose_ways({}, TWO, None, False, None, available)
    assert ways.describe() == "shm within hosts, tcp between them (flat: allreduce)"
