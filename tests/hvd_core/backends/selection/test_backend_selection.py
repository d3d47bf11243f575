"""The selection over plain data: the backend of each operation on each device type, and the source of the choice."""

import logging
from types import SimpleNamespace

import pytest

from golden_texts import golden
from hvd_core._config.selection_rules import Level, Rule
from hvd_core.backends import BackendError, BackendNotInstalled, BackendUnavailable
from hvd_core.backends._selection import choice
from hvd_core.backends._selection.choice import OneHostOnly
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
    chosen,
    plan,
    table,
)

ENV = "HOROVOD_BACKEND"


@pytest.fixture(autouse=True)
def _fresh_warnings():
    choice._warned.clear()


def raised(kind, *backends, **how):
    with pytest.raises(kind) as caught:
        plan(*backends, **how)
    return str(caught.value)


def a_file(name, *rules):
    return Level(name, tuple(Rule(d, o, n, f"{name}:{i}") for i, (d, o, *n) in enumerate(rules, 1)))


def of(made, device="cpu"):
    return chosen(made).get(device)


# Host memory.


def test_select_automatic():
    assert chosen(plan(SHM)) == {"cpu": ("shm", "automatic")}
    assert of(plan(SHM, TCP, value="")) == ("shm", "automatic")
    assert of(plan(SHM, TCP, world=TWO_HOSTS)) == ("shm x tcp", "automatic")


def test_select_named():
    assert of(plan(value="shm")) == ("shm", ENV)
    assert of(plan(value=" TCP ")) == ("tcp", ENV)
    assert of(plan(value="cpu=mpi")) == ("mpi", ENV)
    assert of(plan(value="tcp,cpu=mpi")) == ("mpi", ENV)


def test_select_precedence():
    files = [a_file("/u.toml", ("cpu", None, "tcp")), a_file("/s.toml", ("cpu", None, "shm"))]
    legacy = {"HOROVOD_CPU_OPERATIONS": "MPI"}
    assert of(plan(argument="shm", value="tcp", files=files, **legacy)) == ("shm", "init(backend=...)")
    assert of(plan(value="tcp", files=files, **legacy)) == ("tcp", ENV)
    assert of(plan(files=files, world=ONE_HOST_BY_MPI, **legacy)) == ("mpi", "HOROVOD_CPU_OPERATIONS")
    assert of(plan(files=files)) == ("tcp", "/u.toml:1")
    assert of(plan(files=files[1:])) == ("shm", "/s.toml:1")
    assert of(plan()) == ("shm", "automatic")


def test_select_specific_beats_broad_within_a_level_only():
    assert table(plan(value="tcp,cpu.allgather=mpi"))["cpu"] == {
        **dict.fromkeys(("allreduce", "broadcast", "alltoall", "reducescatter", "barrier"), ("tcp", ENV)),
        "allgather": ("mpi", ENV),
    }
    assert of(plan(value="tcp", HOROVOD_CPU_ALLGATHER="mpi")) == ("tcp", ENV)
    legacy = {"HOROVOD_CPU_ALLGATHER": "mpi", "HOROVOD_CPU_OPERATIONS": "tcp"}
    operations = table(plan(world=ONE_HOST_BY_MPI, **legacy))["cpu"]
    assert operations["allgather"] == ("mpi", "HOROVOD_CPU_ALLGATHER")
    assert operations["allreduce"] == ("tcp", "HOROVOD_CPU_OPERATIONS")


def test_select_list_goes_to_the_next_and_says_so(caplog):
    assert of(plan(value="shm,xyz")) == ("shm", ENV)
    assert caplog.records == []
    assert of(plan(value="xyz,tcp")) == ("tcp", ENV)
    golden("list_goes_on", "\n".join(r.getMessage() for r in caplog.records))
    caplog.clear()
    assert of(plan(value="shm,tcp", world=TWO_HOSTS)) == ("shm x tcp", ENV)
    assert caplog.records == []  # nothing is lost: the first serves within the hosts


def test_select_list_goes_on_after_probe_and_load(caplog):
    down = BackendUnavailable(
        "horovod: backend 'nccl' is installed but unavailable here: no device.\n  fix: x"
    )
    installed = ListedBackends(SHM, TCP, MPI, failed={"nccl": down})
    assert of(plan(installed=installed, value="nccl,mpi")) == ("mpi", ENV)
    golden("list_goes_on_after_probe", "\n".join(r.getMessage() for r in caplog.records))
    assert raised(BackendUnavailable, installed=installed, value="nccl,xyz") == str(down)
    assert raised(BackendUnavailable, installed=installed, value="nccl") == str(down)


def test_select_named_never_falls_back():
    golden("within_one_host", raised(BackendUnavailable, value="shm", world=TWO_HOSTS))
    golden(
        "within_one_host_operation",
        raised(BackendUnavailable, value="tcp,cpu.allgather=shm", world=TWO_HOSTS),
    )


def test_select_unknown_name():
    golden("not_installed", raised(BackendNotInstalled, value="ecll"))
    for text in ("gcu=horse", "cpu.allreduce=horse", "horse,mule"):
        assert "'horse' (from HOROVOD_BACKEND)" in raised(BackendNotInstalled, value=text)


def test_select_operations_of_host_memory_by_themselves():
    made = plan(value="cpu.allreduce=tcp,cpu.barrier=mpi")
    assert {o: s.backend.name for o, s in made.host_overrides.items()} == {
        "allreduce": "tcp",
        "barrier": "mpi",
    }
    config = made.engine_config(0)
    assert config["host_routes"] == {
        COLLECTIVES["allreduce"].number: TCP.library,
        COLLECTIVES["reduce"].number: TCP.library,
        COLLECTIVES["barrier"].number: MPI.library,
    }
    assert config["local_backend"] == SHM.library and config["global_backend"] is None
    assert plan(value="tcp,cpu.allgather=tcp").host_overrides == {}
    # On several hosts the same name means a flat route, while the other operations use two levels.
    made = plan(value="cpu.allgather=tcp", world=TWO_HOSTS)
    assert table(made)["cpu"]["allgather"] == ("tcp", ENV)
    assert table(made)["cpu"]["allreduce"] == ("shm x tcp", "automatic")


def test_select_nothing_reaches_across_hosts():
    golden("no_backend_across_hosts", raised(BackendUnavailable, SHM, world=TWO_HOSTS))


@pytest.mark.parametrize("text", ["shm,", ",", "cpu=", "=shm", ".allreduce=shm", "cpu.=shm", "a=b=c"])
def test_select_text_that_cannot_be_read(text):
    said = raised(ValueError, value=text)
    assert f"horovod: HOROVOD_BACKEND = '{text}' cannot be read: '" in said and "\n  entries: NAME" in said


def test_select_text_messages():
    golden("cannot_be_read", raised(ValueError, value="cpu=,shm"))
    golden("unknown_operation", raised(ValueError, value="cpu.alreduce=shm"))


# Device memory.


def test_devices_automatic_by_priority():
    better = NEAR.__class__(**{**NEAR.__dict__, "name": "better", "priority": 70, "spans_hosts": True})
    assert chosen(plan(SHM, TCP, ECCL, better)) == {
        "cpu": ("shm", "automatic"),
        "gcu": ("better", "automatic"),
    }
    assert list(table(plan())) == ["cpu", "cuda", "gcu", "far"]
    assert of(plan(), "cuda") == ("nccl", "automatic"), "mpi is not automatic"


def test_devices_named_backends_govern_what_they_serve():
    made = plan(value="eccl")
    assert chosen(made) == {"cpu": ("shm", "automatic"), "gcu": ("eccl", ENV)}
    made = plan(value="nccl,mpi")
    assert chosen(made) == {"cpu": ("mpi", ENV), "cuda": ("nccl", ENV)}
    made = plan(value="mpi,nccl")
    assert chosen(made) == {"cpu": ("mpi", ENV), "cuda": ("mpi", ENV)}
    assert made.devices[0].table is NCCL, "mpi has no device table"
    made = plan(value="gcu=eccl,cpu=tcp")
    assert of(made) == ("tcp", ENV) and of(made, "gcu") == ("eccl", ENV)
    assert of(made, "cuda") == ("nccl", "automatic"), "nothing broad was said"


def test_devices_by_operation():
    made = plan(value="nccl,cuda.allgather=mpi")
    assert table(made)["cuda"] == {
        **dict.fromkeys(("allreduce", "broadcast", "alltoall", "reducescatter"), ("nccl", ENV)),
        "allgather": ("mpi", ENV),
    }
    (device,) = made.engine_config(3)["devices"]
    routes = {
        COLLECTIVES[o].number: NCCL.library
        for o in ("allreduce", "reduce", "broadcast", "send", "recv", "alltoall", "reducescatter")
    }
    assert device == {
        "type": "cuda",
        "table": NCCL.library,
        "within": None,
        "ordinal": 3,
        "routes": {**routes, COLLECTIVES["allgather"].number: MPI.library},
    }


def test_devices_without_a_communicator_are_staged():
    made = plan(SHM, TCP, FAR)
    assert of(made, "far") == ("staged", "automatic")
    made = plan(value="far")
    assert chosen(made) == {"cpu": ("shm", "automatic"), "far": ("staged", ENV)}
    (device,) = made.engine_config(1)["devices"]
    assert device["table"] == FAR.library and set(device["routes"].values()) == {None}


def test_devices_staged_by_name():
    made = plan(value="eccl,gcu.allreduce=shm")
    assert table(made)["gcu"]["allreduce"] == ("staged", ENV)
    assert table(made)["gcu"]["allgather"] == ("eccl", ENV)
    assert made.devices[0].routes.keys() == {"allgather", "broadcast", "alltoall", "reducescatter"}
    assert table(plan(value="eccl,gcu.allreduce=tcp,cpu.allreduce=tcp"))["gcu"]["allreduce"] == (
        "staged",
        ENV,
    )


@pytest.mark.parametrize(
    ("value", "over"),
    [("eccl,gcu.allreduce=mpi", "mpi"), ("eccl,cpu=mpi,gcu.allreduce=tcp", "tcp")]
    + [("eccl,gcu.allreduce=tcp", "tcp"), ("eccl,cpu=mpi,gcu.allreduce=shm", "shm")],
)
def test_devices_staged_over_a_named_backend_that_host_memory_does_not_go_over(value, over):
    made = plan(value=value)
    (device,) = made.devices
    assert device.routes["allreduce"].name == over and device.routes["allgather"].name == "eccl"
    (cell,) = [c for c in made.cells() if (c.device, c.operation) == ("gcu", "allreduce")]
    assert cell.staged and [b.name for b in cell.backends] == [over]
    assert table(made)["cpu"]["allreduce"][0] == ("mpi" if "cpu=mpi" in value else "shm")


def test_devices_staged_between_hosts():
    assert table(plan(value="eccl,gcu.allreduce=tcp", world=TWO_HOSTS))["gcu"]["allreduce"] == ("staged", ENV)
    with pytest.raises(OneHostOnly, match=r"'shm'.*works within one host"):
        plan(value="eccl,cpu=tcp,gcu.allreduce=shm", world=TWO_HOSTS)


def test_devices_that_a_named_backend_does_not_serve():
    golden("does_not_serve_device", raised(BackendError, value="gcu=nccl"))
    golden("does_not_serve_host", raised(BackendError, value="cpu=nccl"))
    golden("no_such_devices", raised(BackendUnavailable, SHM, TCP, value="gcu=shm"))


def test_devices_within_one_host_only():
    assert of(plan(SHM, TCP, NEAR), "gcu") == ("near", "automatic")
    assert of(plan(SHM, TCP, NEAR, world=TWO_HOSTS), "gcu") == ("staged", "automatic")
    assert "'near' (from HOROVOD_BACKEND) works within one host" in raised(
        BackendUnavailable, SHM, TCP, NEAR, value="near", world=TWO_HOSTS
    )
    assert of(plan(SHM, TCP, NEAR, ECCL, value="near,eccl", world=TWO_HOSTS), "gcu") == ("eccl", ENV)


def test_devices_are_not_looked_for_when_embedded_backends_are_named():
    installed = ListedBackends(SHM, TCP, ECCL)
    made = plan(installed=installed, value="shm")
    assert made.devices == () and not installed.looked
    golden("note_embedded_named", made.note)
    golden("note_nothing_installed", plan(SHM, TCP).note)
    installed.unusable = {
        "xccl": BackendUnavailable("horovod: backend 'xccl' is installed but unavailable here: no.\n")
    }
    golden("note_unavailable", plan(installed=installed).note)


def test_levels_below_a_broad_one_count_for_named_devices_only():
    files = [a_file("/s.toml", (None, None, "eccl"), ("cuda", None, "nccl"))]
    made = plan(value="tcp", files=files)
    assert chosen(made) == {"cpu": ("tcp", ENV), "cuda": ("nccl", "/s.toml:2")}
    assert chosen(plan(value="cpu=tcp", files=files))["gcu"] == ("eccl", "/s.toml:1")


# Older variables.


def test_legacy_gpu_keys_speak_of_every_accelerator_of_the_backend(caplog):
    made = plan(HOROVOD_GPU_ALLREDUCE="ECCL", HOROVOD_GPU_OPERATIONS="NCCL")
    assert table(made)["gcu"]["allreduce"] == ("eccl", "HOROVOD_GPU_ALLREDUCE")
    assert table(made)["gcu"]["allgather"] == ("eccl", "automatic"), "nccl declares no gcu"
    assert of(made, "cuda") == ("nccl", "HOROVOD_GPU_OPERATIONS"), "eccl declares no cuda"
    assert of(made) == ("shm", "automatic")
    assert caplog.records == []


def test_legacy_leftovers_warn_once_and_are_skipped(caplog):
    leftovers = {
        "HOROVOD_GPU_ALLREDUCE": "DDL",
        "HOROVOD_GPU_BROADCAST": "TCP",
        "HOROVOD_CPU_OPERATIONS": "CCL",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
    }
    down = BackendUnavailable(
        "horovod: backend 'nccl' is installed but unavailable here: no device is visible.\n  fix: x"
    )
    for _ in range(3):
        made = plan(installed=ListedBackends(SHM, TCP, ECCL, failed={"nccl": down}), **leftovers)
        assert chosen(made) == {"cpu": ("shm", "automatic"), "gcu": ("eccl", "automatic")}
    assert {r.levelno for r in caplog.records} == {logging.WARNING}
    golden("legacy_leftovers", "\n".join(r.getMessage() for r in caplog.records))


def test_legacy_keys_are_nothing_beside_horovod_backend(caplog):
    made = plan(value="eccl", HOROVOD_GPU_ALLREDUCE="NCCL")
    assert chosen(made) == {"cpu": ("shm", "automatic"), "gcu": ("eccl", ENV)}
    assert caplog.records == []


def test_legacy_names_of_a_backend_for_other_devices(caplog):
    legacy = {"HOROVOD_GPU_ALLREDUCE": "ECCL", "HOROVOD_GPU_ALLGATHER": "MPI", "HOROVOD_GPU_BROADCAST": "MPI"}
    assert of(plan(SHM, TCP, ECCL, MPI, world=ONE_HOST_BY_MPI, **legacy), "gcu")["allgather"] == (
        "eccl",
        "automatic",
    )
    assert caplog.records == []  # there is nothing for them to serve here
    caplog.clear()
    assert list(chosen(plan(SHM, TCP, MPI, world=ONE_HOST_BY_MPI, HOROVOD_GPU_ALLGATHER="MPI"))) == ["cpu"]
    assert caplog.records == [], "there are no devices whose choice it could be"


def test_legacy_names_of_a_backend_that_cannot_work_in_this_launchers_jobs(caplog):
    legacy = {
        "HOROVOD_CPU_OPERATIONS": "MPI",
        "HOROVOD_GPU_ALLREDUCE": "NCCL",
        "HOROVOD_GPU_ALLGATHER": "MPI",
    }
    for world in (ONE_HOST, TWO_HOSTS):
        made = plan(world=world, **legacy)
        assert "mpi" not in [b.name for b in made.backends()]
        assert table(made)["cuda"]["allreduce"] == ("nccl", "HOROVOD_GPU_ALLREDUCE")
    golden("legacy_of_another_launcher", "\n".join(r.getMessage() for r in caplog.records))
    caplog.clear()
    made = plan(world=TWO_HOSTS_BY_MPI, **legacy)
    assert of(made) == ("mpi", "HOROVOD_CPU_OPERATIONS")
    assert table(made)["cuda"]["allgather"] == ("mpi", "HOROVOD_GPU_ALLGATHER")
    assert table(made)["cuda"]["broadcast"] == ("nccl", "automatic")
    # One process is alone in any case, and a variable that was not baked into an image takes effect.
    assert of(plan(world=None, **legacy)) == ("mpi", "HOROVOD_CPU_OPERATIONS")
    assert of(plan(value="mpi")) == ("mpi", ENV)
    assert caplog.records == []


def test_only_rank_0_warns(caplog):
    other = SimpleNamespace(rank=1, launcher="horovodrun", hosts=(0, 0), host_names=("alpha", "alpha"))
    assert of(plan(SHM, world=other, HOROVOD_CPU_OPERATIONS="gloo")) == ("shm", "automatic")
    assert caplog.records == []
    assert of(plan(SHM, world=ONE_HOST, HOROVOD_CPU_OPERATIONS="gloo")) == ("shm", "automatic")
    assert len(caplog.records) == 1


def test_barrier_of_a_device_is_refused():
    with pytest.raises(ValueError, match=r"'gcu.barrier': a barrier moves no tensors"):
        plan(value="gcu.barrier=shm")
