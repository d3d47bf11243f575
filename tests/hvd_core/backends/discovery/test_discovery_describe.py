"""Faults of plugins' descriptors: each becomes one error that names the wheel and keeps the root cause."""

from __future__ import annotations

import sys
import threading
import time
from textwrap import dedent

import pytest

from hvd_core._config.hints import pip_install
from hvd_core.backends import (
    Available,
    BackendDescribeError,
    BackendDescriptor,
    BackendLoadError,
    Unavailable,
    _discovery,
    installed,
)
from hvd_core.backends._discovery import lookup
from hvd_core.backends._discovery.installed_backend import ABI
from hvd_core.version import __version__
from plugin_sites import announce

HEAD = """
from dataclasses import dataclass
from pathlib import Path
from hvd_core.backends import Available, BackendDescriptor, Unavailable, always
def given(**changes):
    known = dict(name="alpha", abi=(1, 0), devices=("cpu",), provides=frozenset({"comm"}), library=Path("/x/liba.so"))
    return BackendDescriptor(**(known | changes))
"""

_numbers = iter(range(10_000))


def described(site, code, **how):
    """The descriptor of a plugin with this code, under a module name that no other test has."""
    announce(site, "alpha", HEAD + dedent(code), distribution=f"alpha{next(_numbers)}", **how)
    _discovery.forget()
    found = _discovery.find("alpha", "x")
    return found, _discovery.describe(found)


def refusal(site, code, **how):
    with pytest.raises(BackendDescribeError) as caught:
        described(site, code, **how)
    return caught.value


def test_a_good_one(site):
    found, descriptor = described(
        site,
        "def describe(): return given(requires=('libx.so >= 3.1',), launchers=('mpich',), "
        "probe=lambda: Available('2 devices'))",
    )
    assert isinstance(descriptor, BackendDescriptor) and descriptor.requires == ("libx.so >= 3.1",)
    assert _discovery.probe(descriptor) == Available("2 devices")
    backend = lookup("alpha", "x")
    assert (backend.devices, backend.provides, backend.automatic) == (("cpu",), {"comm"}, True)
    assert backend.launchers == ("mpich",) and lookup("tcp", "x").launchers == ()
    assert backend.origin == f"{found.distribution} 0.3.0" and backend.fault() is None


def test_a_broken_import_keeps_its_cause(site):
    error = refusal(site, "import no_such_module_at_all")
    wheel = _discovery.find("alpha", "x").distribution
    assert str(error) == (
        f"horovod: backend 'alpha' ({wheel} 0.3.0) cannot be described.\n"
        f"  cause: {wheel}:describe failed: ModuleNotFoundError: No module named 'no_such_module_at_all'\n"
        f"  fix: pip uninstall {wheel}, or repair it: {pip_install(wheel, '--force-reinstall')}        "
        "check: hvd plugin doctor alpha"
    )
    assert isinstance(error.__cause__, ModuleNotFoundError)
    assert isinstance(lookup("alpha", "x").fault(), BackendDescribeError)


@pytest.mark.parametrize(
    "code, cause",
    [
        ("raise SystemExit(3)", "failed: SystemExit: 3"),
        ("assert False, 'never'", "failed: AssertionError: never"),
        ("", "has no attribute 'describe'"),
        ("describe = 7", "describe failed: TypeError: 'int' object is not callable"),
        ("describe = given()", "TypeError: 'BackendDescriptor' object is not callable"),
        ("def describe(): return {'name': 'alpha'}", "returned {'name': 'alpha'}, not a BackendDescriptor"),
        ("def describe(): raise KeyError('oops')", "describe failed: KeyError: 'oops'"),
        ("def describe(): raise SystemExit", "describe failed: SystemExit"),
        ("def describe(): return given(name='beta')", "name = 'beta', but the entry point is named 'alpha'"),
        ("def describe(): return given(abi='1.0')", "abi = '1.0', which is not (major, minor)"),
        ("def describe(): return given(devices='cpu')", "devices = 'cpu', which is not a tuple"),
        ("def describe(): return given(devices=())", "devices = (), which is not a tuple"),
        ("def describe(): return given(provides={'com'})", "provides = {'com'}, which is not a set of"),
        ("def describe(): return given(library=None)", "library = None, which is not an absolute path"),
        (
            "def describe(): return given(library='lib.so')",
            "library = 'lib.so', which is not an absolute path",
        ),
        (
            "def describe(): return given(python='a.b:C')",
            "beside a class in Python; a backend has one of them",
        ),
        ("def describe(): return given(python='a.b', library=None)", 'which is not "package.module:Class"'),
        ("def describe(): return given(probe=1)", "probe = 1, which is not a function"),
        ("def describe(): return given(priority='high')", "priority = 'high', which is not a whole number"),
        ("def describe(): return given(requires='libx')", "requires = 'libx', which is not a tuple of texts"),
        ("def describe(): return given(spans_hosts=1)", "spans_hosts = 1, which is not true or false"),
        ("def describe(): return given(launchers='mpich')", "launchers = 'mpich', which is not a tuple of"),
    ],
)
def test_a_descriptor_that_is_none(site, code, cause):
    assert cause in str(refusal(site, code))


def test_a_field_of_the_future(site):
    text = str(refusal(site, "def describe(): return given(quantum=True)"))
    assert "unexpected keyword argument 'quantum'" in text
    assert (
        f"fix: it may be written for a newer hvd-core than this {__version__}: {pip_install('hvd-core', '-U')}"
        in text
    )


@pytest.mark.parametrize(
    "entry, cause",
    [
        ("json", "TypeError: 'module' object is not callable"),
        ("no.such:thing", "failed: ModuleNotFoundError: No module named 'no'"),
    ],
)
def test_an_entry_point_without_a_function(site, entry, cause):
    assert cause in str(refusal(site, "", entry=entry))


@pytest.mark.parametrize(
    "code, says",
    [
        (
            "class Own(Exception):\n    def __str__(self): raise SystemExit\nraise Own",
            "Own: its text cannot be read",
        ),
        ("raise ValueError('z' * 5_000_000)", "zzz... (5000000 characters)"),
    ],
    ids=["unreadable", "endless"],
)
def test_texts_of_exceptions_that_no_message_can_hold(site, code, says):
    text = str(refusal(site, code))
    assert says in text and len(text) < 2000


def test_a_broken_one_leaves_the_others_alone(site):
    announce(site, "broken", "raise RuntimeError('oops')", distribution="broken-one")
    _, descriptor = described(site, "def describe(): return given()")
    assert descriptor.name == "alpha"
    assert [b.name for b in installed() if b.fault() is not None] == ["broken"]


# ----------------------------------------------------------------------------------------------------------- probes


def descriptor(probe):
    return BackendDescriptor("alpha", (1, 0), ("cpu",), frozenset({"comm"}), None, probe=probe)


@pytest.mark.parametrize(
    "probe, reason",
    [
        (lambda: 1 / 0, "its probe raised ZeroDivisionError: division by zero"),
        (lambda: sys.exit("bye"), "its probe raised SystemExit: bye"),
        (lambda: True, "its probe answered True, which is neither Available nor Unavailable"),
        (lambda: None, "its probe answered None, which is neither"),
        (lambda: Unavailable("no device is visible"), "no device is visible"),
    ],
)
def test_what_a_probe_may_do(probe, reason):
    answer = _discovery.probe(descriptor(probe))
    assert isinstance(answer, Unavailable) and reason in answer.reason


def test_a_probe_that_does_not_come_back():
    release = threading.Event()
    began = time.monotonic()
    answer = _discovery.probe(descriptor(release.wait), timeout_s=0.2)
    assert isinstance(answer, Unavailable) and "has not answered within 0.2 s" in answer.reason
    assert "[probe] timeout_s" in answer.fix
    assert time.monotonic() - began < 60
    release.set()


# ------------------------------------------------------------------------------------------------- before the load


@pytest.mark.parametrize("major, package", [(2, "hvd-core"), (0, None)])
def test_another_abi_is_refused_before_anything_is_loaded(site, major, package):
    found, _ = described(site, f"def describe(): return given(abi=({major}, 0))")
    with pytest.raises(BackendLoadError) as caught:
        lookup("alpha", "x").path()
    assert str(caught.value) == (
        f"horovod: backend 'alpha' ({found.distribution} 0.3.0) needs backend ABI {major}.x; this hvd-core "
        f"{__version__} offers {ABI[0]}.{ABI[1]}.  fix: {pip_install(package or found.distribution, '-U')}"
    )


def test_a_library_that_is_not_there(site):
    found, _ = described(site, "def describe(): return given()")
    with pytest.raises(BackendLoadError) as caught:
        lookup("alpha", "x").path()
    assert str(caught.value) == (
        f"horovod: backend 'alpha' ({found.distribution} 0.3.0) failed to load.\n"
        "  cause: the library that its descriptor names does not exist: /x/liba.so\n"
        f"  fix: build it, or {pip_install(found.distribution, '--force-reinstall')}      "
        "check: hvd plugin doctor alpha"
    )
