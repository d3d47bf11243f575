"""An allreduce of device memory over two levels: when it is chosen; and the plan of a process set with own backends."""

from types import SimpleNamespace

import pytest

from hvd_core._config.selection_rules import OF_SET, ladder
from hvd_core.backends._selection.choice import Choice
from hvd_core.backends._selection.plan import with_own
from hvd_core.backends.errors import BackendUnavailable
from listed_backends import ECCL, FAR, MPI, NEAR, ONE_HOST, SHM, TCP, TWO_HOSTS, ListedBackends, plan, table

UNEVEN = SimpleNamespace(**{**vars(TWO_HOSTS), "hosts": (0, 0, 1), "host_names": ("alpha", "alpha", "beta")})
LONE = SimpleNamespace(**{**vars(TWO_HOSTS), "hosts": (0, 1), "host_names": ("alpha", "beta")})


def within(made):
    """The name of the backend within hosts, by device type."""
    return {d.type: d.within and d.within.name for d in made.devices}


@pytest.mark.parametrize(
    ("backends", "world", "wanted", "found"),
    [
        ((SHM, TCP, ECCL), TWO_HOSTS, None, None),
        ((SHM, TCP, ECCL), TWO_HOSTS, True, "eccl"),
        ((SHM, TCP, ECCL), ONE_HOST, True, None),
        ((SHM, TCP, ECCL), UNEVEN, True, None),
        ((SHM, TCP, ECCL), LONE, True, None),
        ((SHM, TCP, NEAR), TWO_HOSTS, None, "near"),
        ((SHM, TCP, NEAR), TWO_HOSTS, False, None),
    ],
)
def test_levels_of_devices(backends, world, wanted, found):
    made = plan(*backends, world=world, levels=(wanted, None))
    assert within(made) == {"gcu": found}
    cells = {cell.operation: cell for cell in made.cells() if cell.device == "gcu"}
    assert ([b.name for b in cells["allreduce"].backends] == [found, "tcp"]) == (found is not None)
    told = {d["type"]: d["within"] for d in made.engine_config(0)["devices"]}
    assert told == {"gcu": found and (found, f"/lib/lib{found}.so")}
    if found:
        assert cells["allreduce"].staged
        assert found in {b.name for b in made.backends()}


def test_a_route_that_copies_has_no_levels():
    assert within(plan(value="eccl,gcu.allreduce=tcp", world=TWO_HOSTS, levels=(True, None)))["gcu"] is None


def of_set(job, argument, *backends):
    installed = ListedBackends(*(backends or (SHM, TCP, ECCL, MPI, FAR)))
    return with_own(job, Choice(ladder({}, argument, (), OF_SET), installed, ONE_HOST).plan(), OF_SET)


def test_a_set_keeps_what_it_does_not_name():
    job = plan(SHM, TCP, ECCL, MPI, value="mpi,gcu=eccl,gcu.alltoall=tcp")
    assert table(of_set(job, "tcp")) == {
        "cpu": dict.fromkeys(table(job)["cpu"], ("tcp", OF_SET)),
        "gcu": table(job)["gcu"],
    }
    one = table(of_set(job, "cpu.allgather=shm,gcu.alltoall=eccl"))
    assert one["cpu"] == table(job)["cpu"] | {"allgather": ("shm", OF_SET)}
    assert one["gcu"] == table(job)["gcu"] | {"alltoall": ("eccl", OF_SET)}
    # eccl serves no host memory, so that this stays as it is.
    whole = table(of_set(job, "eccl"))
    assert whole["cpu"] == table(job)["cpu"]
    assert whole["gcu"] == dict.fromkeys(table(job)["gcu"], ("eccl", OF_SET))


def test_a_set_opens_no_other_device():
    job = plan(SHM, TCP, ECCL, value="shm")
    with pytest.raises(BackendUnavailable, match="'gcu', and this job opens no devices of that type"):
        of_set(job, "eccl")
