"""Random installations, jobs and wishes: each yields a whole table or an error that says why."""

import random
from types import SimpleNamespace

import pytest

from hvd_core._config.selection_rules import HOST, OPERATIONS, Level, Rule, legacy_variables
from hvd_core.backends import BackendError, BackendUnavailable
from hvd_core.backends._selection.plan import AUTOMATIC, DEVICE_OPERATIONS
from hvd_core.types import COLLECTIVES
from listed_backends import (
    ECCL,
    FAR,
    MPI,
    NCCL,
    NEAR,
    ONE_HOST,
    ONE_HOST_BY_MPI,
    SHM,
    TCP,
    TWO_HOSTS,
    TWO_HOSTS_BY_MPI,
    ListedBackends,
    plan,
)

WHEELS = (NCCL, ECCL, MPI, FAR, NEAR)
NAMES = [b.name for b in (SHM, TCP, *WHEELS)] + ["missing"]
DEVICES = ["cpu", "cuda", "gcu", "far", "nothing"]


def wish(dice):
    name = dice.choice(NAMES)
    kind = dice.random()
    if kind < 0.4:
        return name
    device = dice.choice(DEVICES)
    return f"{device}={name}" if kind < 0.7 else f"{device}.{dice.choice(operations(device))}={name}"


def operations(device):
    return OPERATIONS if device == HOST else DEVICE_OPERATIONS


def a_file(dice, name):
    rules = []
    for _ in range(dice.randint(0, 2)):
        device = dice.choice([None, *DEVICES])
        operation = dice.choice([None, *operations(device)]) if device else None
        rules.append(Rule(device, operation, tuple(dice.sample(NAMES, dice.randint(1, 3))), f"{name}:1"))
    return Level(name, tuple(rules))


def check(made, world):
    """Checks the rules that every plan keeps."""
    several = len(set(world.hosts)) > 1
    cells = {(c.device, c.operation): c for c in made.cells()}
    assert {o for d, o in cells if d == HOST} == set(OPERATIONS)
    for device in made.devices:
        assert device.table.table == device.type
        for operation in DEVICE_OPERATIONS:
            route = device.routes.get(operation)
            cell = cells[device.type, operation]
            if device.within and operation == "allreduce":  # over two levels
                route = made.host_route.between
                assert several and device.type in device.within.serves
                assert cell.backends == (device.within, route)
                del cells[device.type, operation]
            assert cell.source == device.sources[operation]
            assert cell.staged == (route is None or device.type not in route.serves)
            if route is not None:
                assert {device.type, HOST} & route.serves and (route.spans_hosts or not several)
    for (device, _), cell in cells.items():
        if device == HOST:
            assert all(HOST in b.serves for b in cell.backends)
            assert not several or cell.backends[-1].spans_hosts
        if cell.source == AUTOMATIC and not cell.staged:
            assert all(b.automatic for b in cell.backends)
            own = [b for b in cell.backends if b.launchers]
            assert not own or (device == HOST and several and world.launcher in own[0].launchers)
    config = made.engine_config(1)
    assert config["local_backend"] or config["global_backend"]
    assert not several or config["global_backend"]
    assert all(0 <= n < len(COLLECTIVES) for n in config["host_routes"])


@pytest.mark.parametrize("seed", range(20))
def test_random_choices(seed):
    dice = random.Random(seed)
    refused = 0
    for _ in range(200):
        installed = [SHM, TCP, *dice.sample(WHEELS, dice.randint(0, len(WHEELS)))]
        down = {b.name: BackendUnavailable(f"horovod: backend '{b.name}' is down.") for b in installed[2:]}
        installed = ListedBackends(*installed, failed={n: e for n, e in down.items() if dice.random() < 0.2})
        environ = {v: dice.choice(NAMES) for v in legacy_variables() if dice.random() < 0.05}
        how = {
            "value": ",".join(wish(dice) for _ in range(dice.randint(1, 3))) if dice.random() < 0.7 else None,
            "argument": [wish(dice)] if dice.random() < 0.1 else None,
            "files": [a_file(dice, "/user.toml"), a_file(dice, "/site.toml")],
            "levels": (dice.choice([None, None, True, False]), dice.choice([None, None, True, False])),
            "world": dice.choice([ONE_HOST, TWO_HOSTS, ONE_HOST_BY_MPI, TWO_HOSTS_BY_MPI]),
        }
        world = SimpleNamespace(**{**vars(how.pop("world")), "rank": 1})
        try:
            made = plan(installed=installed, world=world, **how, **environ)
        except BackendError as error:
            refused += 1
            assert str(error).startswith("horovod: "), error
            continue
        check(made, world)
    assert 0 < refused < 200
