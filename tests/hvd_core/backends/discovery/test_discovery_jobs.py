"""Real jobs: the launcher looks once and its ranks do not; what a wheel brings is used by its name."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from discovery_programs import report_what_init_reads
from horovod._runner.environment import backend_environment
from hvd_core._config.hints import pip_install
from hvd_core.backends import BackendVersionMismatch, _discovery
from hvd_core.backends._candidate import WHEEL, Candidate, Problem
from hvd_core.backends._discovery import entry_points
from launchers import program_words
from plugin_sites import HERE, PACKAGES, announce, install, python, wheel


def lines(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line.partition(">:")[2] for line in done.stdout.splitlines())


@pytest.fixture
def alpha(tmp_path):
    site = tmp_path / "site"
    announce(site, "alpha")
    return site


def test_an_embedded_name_needs_no_looking(launcher, alpha):
    env = path(alpha) | {"HOROVOD_BACKEND": "shm"}
    assert lines(launcher.python(2, report_what_init_reads, env=env)) == ["read 0 modules spec False"] * 2


@pytest.mark.parametrize(
    "named, handed",
    [
        ("", True),
        ("shm", False),
        ("TCP , shm", False),
        ("chaos", False),
        ("cpu=shm", True),
        ("shm,x=alpha", True),
    ],
)
def test_when_the_launcher_looks(site, named, handed):
    announce(site, "alpha")
    variables = backend_environment({"HOROVOD_BACKEND": named, "HOROVOD_BACKEND_SPEC": "an outer job's"})
    assert list(variables) == ["HOROVOD_BACKEND_SPEC"] * handed
    if handed:
        assert "alpha" in [row["name"] for row in json.loads(variables["HOROVOD_BACKEND_SPEC"])["backends"]]


def test_a_list_that_no_variable_holds_is_not_handed_on(site):
    for number in range(5):
        announce(site, f"alpha{number}", entry="x" * 30_000 + ":describe")
    assert backend_environment({}) == {}
    assert "alpha4" in [c.name for c in _discovery.candidates()]


def path(*sites):
    """The variable by which the launcher and its ranks see these folders."""
    known = [*map(str, sites), PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(known)}


def test_ranks_take_what_the_launcher_found(launcher, alpha):
    env = path(alpha) | {"FIND": "alpha"}
    assert lines(launcher.python(2, report_what_init_reads, env=env)) == (
        ["found 0.3.0 True"] * 2 + ["read 0 modules hvd_backend_alpha spec True"] * 2
    )


def test_without_a_launcher_a_rank_looks_for_itself(alpha, tmp_path):
    done = python(report_what_init_reads, alpha, cwd=tmp_path, env={"FIND": "alpha"})
    assert done.stdout.startswith("found 0.3.0 False\nread "), done.stderr
    assert "stevedore importlib.metadata hvd_backend_alpha spec False" in done.stdout


def test_an_outer_jobs_spec_is_not_handed_on(launcher, alpha):
    env = path(alpha) | {"HOROVOD_BACKEND_SPEC": "nonsense", "FIND": "alpha"}
    assert "found 0.3.0 True" in lines(launcher.python(1, report_what_init_reads, env=env))


def test_what_only_the_rank_can_see_is_found(launcher, tmp_path):
    late = tmp_path / "late"
    announce(late, "alpha")
    done = launcher.run("-np", 1, *program_words(report_what_init_reads, late), env={"FIND": "alpha"})
    assert "found 0.3.0 False" in lines(done)


ADDING = """
from hvd_core.backends import BackendDescriptor, Option, PythonBackend
from hvd_core.backends._chaos import Star

class Backend(PythonBackend):
    name = "alpha"
    communicator = Star
    vectored = True
    dtypes = ("float32",)
    options = (Option("depth", "int", "4", "1..64", "How deep."),)
    def create(self, key, store, ranks, hosts, rank, size, deadline):
        assert self.option("depth") == 7
        return Star(store, ranks, hosts, rank, size, deadline, message_timeout_s=None)

def describe():
    return BackendDescriptor(
        name="alpha", abi=(1, 0), devices=("cpu",), provides=frozenset({"comm"}), library=None,
        python="hvd_backend_alpha:Backend",
    )
"""


def test_a_real_wheel_with_a_backend_in_python(launcher, tmp_path):
    site = tmp_path / "site"
    install(wheel(tmp_path, "alpha", ADDING, version="0.7.1"), site)
    env = path(site) | {"FIND": "alpha", "HOROVOD_BACKEND": "Alpha", "HOROVOD_BACKEND_ALPHA_DEPTH": "7"}
    assert lines(launcher.python(2, report_what_init_reads, env=env)) == (
        ["found 0.7.1 True"] * 2 + ["read 0 modules hvd_backend_alpha spec True"] * 2
    )
    # It is never chosen when nothing is named.
    env = path(site) | {"HOROVOD_LOG_LEVEL": "info"}
    done = launcher.python(1, report_what_init_reads, env=env)
    assert len(lines(done)) == 1 and re.search(r"allreduce +cpu +shm .*\[automatic\]", done.stderr), (
        done.stderr
    )


def test_broken_plugins_that_a_job_does_not_use_are_not_mentioned(launcher, tmp_path):
    site, other = tmp_path / "site", tmp_path / "other"
    static = HERE.format(provides="comm")
    announce(site, "broken", "import no_such_module_at_all", static=static)
    announce(site, "exits", "raise SystemExit(5)", static=static)
    announce(site, "twice")
    announce(other, "twice", distribution="twice-of-others")
    done = launcher.python(2, report_what_init_reads, env=path(site, other))
    assert [line[:6] for line in lines(done)] == ["read 0"] * 2
    assert not any(f"'{name}'" in done.stderr for name in ("broken", "exits", "twice")), done.stderr


# ------------------------------------------------------------------------------------------------------- the text


FOUND = Candidate(
    "alpha", WHEEL, "hvd-backend-alpha", "0.3.0", "m:f", "/site", "hvd_backend_alpha-0.3.0.dist-info"
)


def test_the_text_and_back():
    text = entry_points.encode(
        [FOUND, Candidate("shm", "embedded")], [Problem("b", "duplicate", "two of them")]
    )
    assert "\n" not in text and ": " not in text and "shm" not in text
    wheels, problems = entry_points.decode({"HOROVOD_BACKEND_SPEC": text})
    assert [w.describe_place() for w in wheels] == ["hvd-backend-alpha 0.3.0 in /site"] and wheels[
        0
    ].from_spec
    assert problems == (Problem("b", "duplicate", "two of them"),)
    assert entry_points.decode({}) is None
    assert entry_points.decode({"HOROVOD_BACKEND_SPEC": ""}) is None


@pytest.mark.parametrize("space", ["", " "])
def test_an_entry_of_the_text_may_have_spaces(space):
    entry = f"hvd_core.backends._discovery.registry{space}:{space}chaos"
    found = Candidate("chaos", "wheel", distribution="x", entry=entry, from_spec=True)
    assert _discovery.describe(found).name == "chaos"


def test_another_python_does_not_believe_it():
    found = json.loads(entry_points.encode([FOUND]))
    assert (
        entry_points.decode({"HOROVOD_BACKEND_SPEC": json.dumps(found | {"prefix": "/another/venv"})}) is None
    )
    assert entry_points.decode({"HOROVOD_BACKEND_SPEC": json.dumps(found | {"format": 99})}) is None


@pytest.mark.parametrize(
    "text", ["nonsense", "[]", '{"format":2}', "7", '{"format":2,"prefix":0,"backends":[1]}']
)
def test_a_text_that_is_none(monkeypatch, text):
    text = text.replace('"prefix":0', f'"prefix":{json.dumps(sys.prefix)}')
    with pytest.raises(ValueError, match=r"^horovod: HOROVOD_BACKEND_SPEC cannot be read"):
        entry_points.decode({"HOROVOD_BACKEND_SPEC": text})


def test_another_version_on_this_host(site, monkeypatch):
    announce(site, "alpha", version="0.3.1")
    handed = json.loads(entry_points.encode([FOUND])) | {"host": "node01"}
    monkeypatch.setenv("HOROVOD_BACKEND_SPEC", json.dumps(handed))
    monkeypatch.setattr("socket.gethostname", lambda: "node04")
    found = _discovery.find("alpha", "x")
    with pytest.raises(BackendVersionMismatch) as caught:
        _discovery.describe(found)
    assert str(caught.value) == (
        "horovod: backend 'alpha' (hvd-backend-alpha 0.3.0): host node04 has hvd-backend-alpha 0.3.1, but the launcher "
        "found 0.3.0 on node01.\n"
        f"  fix: install one version on all hosts: {pip_install('hvd-backend-alpha==0.3.0')}"
    )
    announce(site, "alpha", version="0.3.0")
    entry_points.check_version(found)  # nothing to say


def test_ranks_that_see_another_version_stop_the_job(launcher, tmp_path):
    # As on a host with other wheels: the ranks' path is not the launcher's.
    found, there = tmp_path / "launcher's", tmp_path / "ranks"
    announce(found, "alpha", version="0.3.0")
    announce(there, "alpha", version="0.3.1")
    other = f"PYTHONPATH={path(there)['PYTHONPATH']}"
    code = "import hvd_core; hvd_core.init(backend='alpha')"
    done = launcher.run("-np", 2, "env", other, sys.executable, "-c", code, env=path(found))
    assert done.returncode != 0
    assert "has hvd-backend-alpha 0.3.1, but the launcher found 0.3.0 on" in done.stderr, done.stderr


def test_no_such_distribution_on_this_host(site, monkeypatch):
    monkeypatch.setenv("HOROVOD_BACKEND_SPEC", entry_points.encode([FOUND]))
    with pytest.raises(
        BackendVersionMismatch, match=r"host .* does not have hvd-backend-alpha, but the launcher found"
    ):
        _discovery.describe(_discovery.find("alpha", "x"))


def test_what_led_to_a_message_does_not_bury_it(tmp_path):
    done = python("import hvd_core\nhvd_core.init(backend='nowhere')", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("  File ") == 2, done.stderr  # the program, and init()
    assert "horovod: backend 'nowhere' (from init(backend=...)) is not installed." in done.stderr
