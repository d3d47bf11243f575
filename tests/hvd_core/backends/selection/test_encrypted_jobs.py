"""HOROVOD_TLS=1: backends that do not encrypt are not used between hosts."""

import logging

import pytest

from hvd_core._config.plugins_toml import load
from hvd_core.backends._selection.choice import OneHostOnly, choose
from hvd_core.backends._selection.usable import UsableBackends
from listed_backends import ONE_HOST, SHM, TCP, TWO_HOSTS, backend
from test_backend_selection import of, plan, table

WHY = "does not encrypt what it sends to other hosts, as HOROVOD_TLS=1 asks"
# As UsableBackends describes them in such a job.
GLOO = backend("gloo", "hvd-backend-gloo 1.0", spans_hosts=False, kept_within=WHY)
DEVICE = backend("eccl", "hvd-backend-eccl 1.0", ("gcu",), table="gcu", spans_hosts=False, kept_within=WHY)


@pytest.mark.parametrize(("asked", "reaches"), [("1", False), ("0", True)])
def test_only_the_backend_that_encrypts_reaches_across_hosts(asked, reaches):
    environ = {"HOROVOD_TLS": asked}
    backends = UsableBackends(environ, load(environ))
    assert backends.usable("tcp", "test").spans_hosts
    assert backends.usable("chaos", "test").spans_hosts == reaches
    assert backends.usable("chaos", "test").kept_within == ("" if reaches else WHY)


def test_a_backend_that_does_not_encrypt_is_refused_between_hosts_with_the_reason():
    text = f"backend 'chaos' \\(from HOROVOD_BACKEND\\) {WHY}, and this job spans 2 hosts"
    environ = {"HOROVOD_TLS": "1", "HOROVOD_BACKEND": "chaos"}
    with pytest.raises(OneHostOnly, match=text):
        choose(environ, load(environ), TWO_HOSTS)
    assert choose(environ, load(environ), ONE_HOST).host_route.backends("")[0].name == "chaos"


def test_a_backend_that_does_not_encrypt_works_within_hosts():
    made = plan(SHM, TCP, GLOO, value="gloo,tcp", world=TWO_HOSTS)
    assert table(made)["cpu"]["allreduce"][0] == "gloo x tcp"
    assert table(plan(SHM, TCP, GLOO, world=TWO_HOSTS))["cpu"]["allreduce"][0] == "shm x tcp"


def test_a_list_without_a_backend_that_encrypts_is_refused_with_that_reason():
    with pytest.raises(OneHostOnly, match=rf"backend 'gloo' \(from HOROVOD_BACKEND\) {WHY}"):
        plan(SHM, TCP, GLOO, value="shm,gloo", world=TWO_HOSTS)


@pytest.mark.parametrize("name", ["HOROVOD_CPU_OPERATIONS", "HOROVOD_CPU_ALLGATHER"])
def test_an_older_variable_that_names_one_is_passed_over_with_a_warning(caplog, name):
    with caplog.at_level(logging.WARNING, "horovod"):
        made = plan(SHM, TCP, GLOO, world=TWO_HOSTS, **{name: "GLOO"})
    assert table(made)["cpu"]["allgather"][0] == "shm x tcp"
    (record,) = caplog.records
    assert record.getMessage().startswith(f"horovod: {name}=gloo is ignored: the backend {WHY}")
    assert of(plan(SHM, TCP, GLOO, world=ONE_HOST, **{name: "GLOO"}))


def test_devices_are_staged_between_hosts_and_rank_0_says_so(caplog):
    with caplog.at_level(logging.WARNING, "horovod"):
        assert of(plan(SHM, TCP, DEVICE), "gcu") == ("eccl", "automatic")
        assert not caplog.records
        assert of(plan(SHM, TCP, DEVICE, world=TWO_HOSTS), "gcu") == ("staged", "automatic")
    (record,) = caplog.records
    assert record.getMessage().startswith(f"horovod: backend 'eccl' {WHY}: tensors on 'gcu' are copied")
