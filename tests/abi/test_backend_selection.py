"""Which backend a job gets, and every message of the selection, word for word."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from hvd_core.backends import (
    BackendError,
    BackendLoadError,
    BackendNotInstalled,
    BackendUnavailable,
    InstalledBackend,
    installed,
    select,
    selection,
)


@pytest.fixture(autouse=True)
def _fresh_warnings():
    selection._said.clear()


@pytest.fixture
def shm(tmp_path):
    library = tmp_path / "libhvd_backend_shm.so"
    library.touch()
    return InstalledBackend("shm", str(library), "embedded", spans_hosts=False, automatic=True)


@pytest.fixture
def some(shm, tmp_path):
    """The installation of the interface page's examples; tcp and eccl reach across hosts."""
    library = tmp_path / "lib.so"
    library.touch()
    return (
        shm,
        InstalledBackend("tcp", str(library), "embedded", spans_hosts=True, automatic=True),
        InstalledBackend("nccl", str(library), "hvd-backend-nccl 0.3.0", spans_hosts=True, automatic=False),
        InstalledBackend("eccl", str(library), "hvd-backend-eccl 0.3.1", spans_hosts=True, automatic=False),
    )


ONE_HOST = SimpleNamespace(rank=0, hosts=(0, 0), host_names=("alpha", "alpha"))
TWO_HOSTS = SimpleNamespace(rank=0, hosts=(0, 0, 1), host_names=("alpha", "alpha", "beta"))


def choose(available, value=None, world=ONE_HOST, argument=None, **environ):
    if value is not None:
        environ["HOROVOD_BACKEND"] = value
    chosen = select(environ, world, argument, available)
    return chosen.name, chosen.source


def test_select_automatic(shm, some):
    assert choose((shm,)) == ("shm", "automatic")
    assert choose(some) == ("shm", "automatic")
    assert choose(some, "") == ("shm", "automatic")
    assert choose(some, world=TWO_HOSTS) == ("tcp", "automatic")
    assert select({}, None, None, (shm,)).path == shm.library


def test_select_named(some):
    assert choose(some, "shm") == ("shm", "HOROVOD_BACKEND")
    assert choose(some, " ECCL ") == ("eccl", "HOROVOD_BACKEND")
    assert choose(some, "cpu=nccl") == ("nccl", "HOROVOD_BACKEND")
    assert choose(some, "eccl,cpu=nccl") == ("nccl", "HOROVOD_BACKEND")


def test_select_precedence(some):
    legacy = {"HOROVOD_CPU_OPERATIONS": "TCP"}
    assert choose(some, **legacy) == ("tcp", "HOROVOD_CPU_OPERATIONS")
    assert choose(some, "eccl", **legacy) == ("eccl", "HOROVOD_BACKEND")
    assert choose(some, "eccl", argument="nccl", **legacy) == ("nccl", "init(backend=...)")
    assert choose(some, "eccl", argument=["shm", "nccl"]) == ("shm", "init(backend=...)")


def test_select_other_devices_leave_host_memory_alone(some):
    assert choose(some, "gcu=eccl") == ("shm", "automatic")
    assert choose(some, "gcu.allgather=eccl", HOROVOD_CPU_OPERATIONS="tcp") == (
        "tcp",
        "HOROVOD_CPU_OPERATIONS",
    )


def test_select_list_goes_to_the_next_and_says_so(some, caplog):
    assert choose(some, "shm,xyz") == ("shm", "HOROVOD_BACKEND")
    assert caplog.records == []
    assert choose(some, "xyz,eccl") == ("eccl", "HOROVOD_BACKEND")
    assert [r.getMessage() for r in caplog.records] == [
        "horovod: backend 'xyz' (from HOROVOD_BACKEND) is not installed. "
        "Using 'eccl', the next that HOROVOD_BACKEND lists."
    ]
    caplog.clear()
    assert choose(some, "shm,eccl", world=TWO_HOSTS) == ("eccl", "HOROVOD_BACKEND")
    assert caplog.records == []  # nothing is lost: the first serves within the hosts (test_backend_ways.py)


def test_select_named_never_falls_back(some):
    with pytest.raises(BackendUnavailable) as caught:
        choose(some, "shm", world=TWO_HOSTS)
    assert str(caught.value) == (
        "horovod: backend 'shm' (from HOROVOD_BACKEND) works within one host, "
        "but this job spans 2 hosts (alpha, beta).\n"
        "  Not falling back, because it was named explicitly.\n"
        "  fix: name one that does: tcp, nccl, eccl\n"
        "  installed: shm, tcp (embedded), nccl (hvd-backend-nccl 0.3.0), eccl (hvd-backend-eccl 0.3.1)"
    )


def test_select_unknown_name(some):
    with pytest.raises(BackendNotInstalled) as caught:
        choose(some, "ecll")
    assert str(caught.value) == (
        "horovod: backend 'ecll' (from HOROVOD_BACKEND) is not installed. Did you mean 'eccl'?\n"
        "  installed: shm, tcp (embedded), nccl (hvd-backend-nccl 0.3.0), eccl (hvd-backend-eccl 0.3.1)\n"
        "  list: hvd plugin list"
    )


def test_select_unknown_name_with_what_ships():
    with pytest.raises(BackendNotInstalled) as caught:
        select({"HOROVOD_BACKEND": "horse"})
    assert str(caught.value) == (
        "horovod: backend 'horse' (from HOROVOD_BACKEND) is not installed.\n"
        "  installed: shm, tcp (embedded)\n"
        "  list: hvd plugin list"
    )
    for text in ("gcu=horse", "cpu.allreduce=horse", "horse,mule"):
        with pytest.raises(BackendNotInstalled, match="'horse'"):
            select({"HOROVOD_BACKEND": text})


def test_select_legacy_name_that_is_not_installed_warns_once(shm, caplog):
    for _ in range(3):
        assert choose((shm,), HOROVOD_CPU_OPERATIONS="MPI") == ("shm", "automatic")
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (
            logging.WARNING,
            "horovod: HOROVOD_CPU_OPERATIONS=MPI names a backend that is not installed; ignored, "
            "the choice is automatic. installed: shm (embedded)",
        )
    ]


def test_select_only_rank_0_warns(shm, caplog):
    other = SimpleNamespace(rank=1, hosts=(0, 0), host_names=("alpha", "alpha"))
    assert choose((shm,), world=other, HOROVOD_CPU_OPERATIONS="gloo") == ("shm", "automatic")
    assert caplog.records == []


def test_select_nothing_reaches_across_hosts(shm):
    with pytest.raises(BackendUnavailable) as caught:
        choose((shm,), world=TWO_HOSTS)
    assert str(caught.value) == (
        "horovod: backend selection: this job spans 2 hosts (alpha, beta), "
        "and no installed backend reaches across hosts.\n"
        "  installed: shm (embedded)\n"
        "  fix: run all ranks on one host, or install a backend that works between hosts\n"
        "  list: hvd plugin list"
    )


@pytest.mark.parametrize("text", ["shm,", ",", "cpu=", "=shm", ".allreduce=shm", "cpu.=shm"])
def test_select_text_that_cannot_be_read(some, text):
    with pytest.raises(ValueError, match=r"cannot be read: '.*' is not an entry\.\n  entries: NAME"):
        choose(some, text)


def test_select_unknown_operation(some):
    with pytest.raises(ValueError) as caught:
        choose(some, "cpu.alreduce=shm")
    assert str(caught.value) == (
        "horovod: HOROVOD_BACKEND: 'alreduce' is not an operation. Did you mean 'allreduce'?\n"
        "  operations: allreduce, allgather, broadcast, alltoall, reducescatter, barrier"
    )


def test_select_one_backend_for_all_operations(some):
    assert choose(some, "cpu.allgather=shm") == ("shm", "HOROVOD_BACKEND")
    with pytest.raises(BackendError) as caught:
        choose(some, "cpu=shm,cpu.allgather=tcp")
    assert str(caught.value) == (
        "horovod: backend 'tcp' (from HOROVOD_BACKEND) is asked for cpu.allgather, "
        "and 'shm' for the rest; one backend must serve all operations on host memory.\n"
        "  fix: name one backend for cpu, such as HOROVOD_BACKEND=shm"
    )


def test_select_library_that_is_missing():
    ghost = InstalledBackend("ghost", "lib/libghost.so", "embedded", spans_hosts=True, automatic=True)
    with pytest.raises(BackendLoadError) as caught:
        select({}, None, None, (ghost,))
    first, second, third = str(caught.value).splitlines()
    assert first == "horovod: backend 'ghost' (embedded) failed to load."
    assert second.startswith("  cause: its library is not in this installation        searched: /")
    assert third.startswith("  fix: reinstall hvd-core")


def test_registry_embedded_names_are_unique():
    names = [b.name for b in installed()]
    assert names[0] == "shm" and len(names) == len(set(names))
