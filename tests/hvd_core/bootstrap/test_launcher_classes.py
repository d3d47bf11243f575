"""The launcher classes, as a group: what all code that derives from them relies on."""

import os
from pathlib import Path

import pytest

from hvd_core._base.processes import process_stat
from hvd_core._base.sockets import DescriptorSet
from hvd_core._bootstrap import launchers
from hvd_core._bootstrap.launchers.identity import identify

ROOT = Path(__file__).resolve().parents[3]
HVD = {"HOROVOD_STORE": "tcp://10.0.0.1:4000", "HOROVOD_SECRET_KEY": "ab" * 32}


@pytest.mark.parametrize("launcher", launchers.LAUNCHERS, ids=lambda launcher: launcher.name)
def test_a_launcher_is_found_by_its_own_variables(launcher):
    environ = {launcher.rank_variable: "1", **HVD}
    if launcher.size_variable is not None:
        environ[launcher.size_variable] = "2"
    assert launchers.find(environ) is launcher and launchers.named(launcher.name) is launcher
    identity = identify(environ)
    assert (identity.launcher, identity.rank) == (launcher.name, 1)
    assert identity.size == (None if launcher.size_variable is None else 2)
    assert identity.variable == launcher.rank_variable
    assert launcher.job({**environ, **dict.fromkeys(launcher.job_variables, "x")})[:1] == tuple(
        f"{name}=x" for name in launcher.job_variables[:1]
    )


@pytest.mark.parametrize("launcher", launchers.LAUNCHERS, ids=lambda launcher: launcher.name)
def test_a_launcher_is_documented(launcher):
    assert launcher.rank_variable in (ROOT / "hvd_core/_bootstrap/README.md").read_text()
    if launcher.command:
        assert f"`{launcher.command} " in (ROOT / "docs/launch.md").read_text()


def test_names_and_variables_are_distinct():
    names = [launcher.name for launcher in launchers.LAUNCHERS]
    variables = [launcher.rank_variable for launcher in launchers.LAUNCHERS]
    assert len(set(names)) == len(names) and len(set(variables)) == len(variables)
    assert launchers.find({}) is None and launchers.named("single") is None


def test_a_process_as_proc_describes_it():
    own = process_stat(os.getpid())
    assert own.is_running and own.parent == os.getppid() and own.started > 0
    assert process_stat(2**22 + 1) is None


def test_a_descriptor_is_known_by_its_number():
    owner = DescriptorSet()
    read, write = os.pipe()
    high = os.dup2(read, 700)
    owner.own(high)
    owner.own(write)
    assert owner.disown(int("700")) == 700  # an equal number, another object
    owner.close()
    os.fstat(700)
    with pytest.raises(OSError):
        os.fstat(write)
    os.close(700)
    os.close(read)
