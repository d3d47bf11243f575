"""Which backends are found, and which are not: names come from metadata, and nothing is imported for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import discovery_programs
from hvd_core.backends import BackendDuplicate, BackendNotInstalled, _discovery, installed
from hvd_core.backends._discovery import installed_backend as describe_and_probe
from hvd_core.backends._discovery import registry
from plugin_sites import announce, python


def names(candidates=None):
    return [c.name for c in (_discovery.candidates() if candidates is None else candidates)]


def kinds():
    return {p.name: p.kind for p in _discovery.problems()}


def test_a_wheel_is_found_and_not_imported(site):
    announce(site, "alpha", "raise SystemExit('imported')", version="1.2.3")
    assert names()[:2] == ["shm", "tcp"] and "alpha" in names()
    found = _discovery.find("Alpha ", "HOROVOD_BACKEND")
    assert (found.origin, found.distribution, found.version) == ("wheel", "hvd-backend-alpha", "1.2.3")
    assert (found.entry, found.location) == ("hvd_backend_alpha:describe", str(site))
    assert "alpha" in [b.name for b in installed()]
    assert "hvd_backend_alpha" not in sys.modules


def test_an_entry_point_that_was_changed_a_moment_ago_is_seen(site):
    # A list that is cached by time stamps of coarse resolution would still have the old name.
    announce(site, "alpha", distribution="plugin")
    assert "alpha" in names()
    announce(site, "beta", distribution="plugin")
    _discovery.forget()
    assert "beta" in names() and "alpha" not in names()


@pytest.fixture
def two_wheels(site, tmp_path, monkeypatch):
    other = tmp_path / "other"
    announce(site, "alpha", "raise RuntimeError('imported')")
    announce(other, "alpha", "raise RuntimeError('imported')", distribution="alpha-of-others", version="1.0")
    announce(other, "beta")
    monkeypatch.syspath_prepend(str(other))
    return site, other


def test_two_wheels_of_one_name_are_an_error_that_names_both(two_wheels):
    site, other = two_wheels
    with pytest.raises(BackendDuplicate) as caught:
        _discovery.find("alpha", "HOROVOD_BACKEND")
    assert str(caught.value) == (
        "horovod: backend 'alpha' (from HOROVOD_BACKEND) is offered by 2 wheels, and nothing says which is meant.\n"
        f"  found: alpha-of-others 1.0 in {other}; hvd-backend-alpha 0.3.0 in {site}\n"
        '  fix: uninstall all but one, or pin one in plugins.toml: [backend.alpha] distribution = "alpha-of-others"\n'
        "  list: hvd plugin list"
    )
    assert isinstance(caught.value, BackendNotInstalled)
    assert not {"hvd_backend_alpha", "alpha_of_others"} & set(sys.modules), "one of them was imported"
    assert _discovery.find("beta", "x").distribution == "hvd-backend-beta", "others are not concerned"
    assert kinds()["alpha"] == "duplicate"


@pytest.mark.parametrize(
    "pin, version",
    [("hvd-backend-alpha", "0.3.0"), ("Alpha_Of.Others >= 0.5, <2", "1.0"), ("alpha-of-others", "1.0")],
)
def test_a_pin_says_which_wheel_is_meant(two_wheels, pin, version):
    assert _discovery.find("alpha", "x", pin).version == version


def test_a_pin_that_nothing_meets(two_wheels):
    site, other = two_wheels
    with pytest.raises(BackendNotInstalled) as caught:
        _discovery.find("alpha", "HOROVOD_BACKEND", "hvd-backend-alpha>=0.4")
    assert str(caught.value) == (
        "horovod: backend 'alpha' (from HOROVOD_BACKEND) is pinned to 'hvd-backend-alpha>=0.4' in plugins.toml, and "
        "that is not installed.\n"
        f"  found: alpha-of-others 1.0 in {other}; hvd-backend-alpha 0.3.0 in {site}\n"
        "  fix: install what is pinned, or correct [backend.alpha].distribution      list: hvd plugin list"
    )
    with pytest.raises(ValueError, match=r"\[backend.alpha\].distribution = '>=0.4' cannot be read"):
        _discovery.find("alpha", "x", ">=0.4")


def test_the_same_distribution_twice_is_no_duplicate(site, tmp_path, monkeypatch):
    # An import takes the first on the path; so does the scan.
    later = tmp_path / "later"
    announce(site, "alpha", version="2.0")
    announce(later, "alpha", version="1.0")
    # `python -m` in a folder of PYTHONPATH has the folder twice.
    monkeypatch.setattr(sys, "path", [*sys.path, str(site), str(later)])
    assert _discovery.find("alpha", "x").version == "2.0"
    assert names().count("alpha") == 1 and "alpha" not in kinds()


def test_nothing_takes_an_embedded_name(site):
    announce(site, "shm", distribution="better-shm")
    assert _discovery.find("shm", "x").origin == "embedded"
    assert kinds()["shm"] == "reserved"


def test_the_embedded_ones_are_announced_as_they_are():
    # For tools that read entry points: they see what the static table says.
    text = (Path(__file__).resolve().parents[4] / "pyproject.toml").read_text()
    for backend in registry.embedded():
        assert f'{backend.name} = "hvd_core.backends._discovery.registry:{backend.name}"' in text
        told = getattr(registry, backend.name)()
        assert (told.name, told.devices, told.provides) == (backend.name, backend.devices, backend.provides)
        assert (told.library is None) == (told.python is not None) == (backend.name == "chaos")
        assert not describe_and_probe._faults(backend.name, told)


def test_names_and_metadata_that_cannot_be(site):
    announce(site, "Alpha Beta", distribution="spaces")
    announce(site, "fine")
    broken = site / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[hvd_core.backends]\nbroken = a:b\n")
    (broken / "METADATA").write_bytes(b"\xff\xfe\x00garbage")
    assert "fine" in names() and "broken" not in names()
    assert kinds()["Alpha Beta"] == "name"


def test_unknown_name(site):
    announce(site, "eccl", version="0.3.1")
    with pytest.raises(BackendNotInstalled) as caught:
        _discovery.find("ecll", "HOROVOD_BACKEND")
    # This environment may have more wheels than the test's.
    first, installed_ones, last = str(caught.value).split("\n")
    assert first == "horovod: backend 'ecll' (from HOROVOD_BACKEND) is not installed. Did you mean 'eccl'?"
    assert installed_ones.startswith("  installed: shm, tcp (embedded), ")
    assert "eccl (hvd-backend-eccl 0.3.1)" in installed_ones
    assert last == "  list: hvd plugin list"


# With the program as a text, the current directory is on the path.
FIND = "import discovery_programs; discovery_programs.find_lying()"
FOLDER = Path(__file__).parent


def test_the_current_directory_does_not_announce_anything(tmp_path):
    here, site = tmp_path / "here", tmp_path / "site"
    announce(here, "lying", suffix="egg-info")
    announce(site, "alpha")
    done = python(FIND, site, FOLDER, cwd=here)
    assert (
        "['alpha'] horovod: backend 'lying' (hvd-backend-lying 0.3.0) is ignored: it was found only through the "
        in (done.stdout)
    ), done.stderr
    # The error for its name tells why it is ignored.
    assert "'lying' (from HOROVOD_BACKEND) is not installed" in done.stdout
    assert "note: backend 'lying' (hvd-backend-lying 0.3.0) is ignored" in done.stdout
    # Named, it is meant.
    assert "['alpha', 'lying']\n" in python(FIND, site, here, FOLDER, cwd=here).stdout
    # A folder with installed packages counts, also if it is the current directory.
    assert "['alpha']" in python(FIND, site, FOLDER, cwd=site).stdout


def test_a_source_folder_does_not_hide_the_installed_wheel(tmp_path):
    here, site = tmp_path / "here", tmp_path / "site"
    announce(here, "alpha", version="9.9", suffix="egg-info")
    announce(site, "alpha", version="0.3.0")
    code = "from hvd_core.backends import _discovery; print(_discovery.find('alpha', 'x').version, _discovery.problems())"
    assert python(code, site, cwd=here).stdout == "0.3.0 ()\n"


def test_importing_the_packages_touches_no_plugin(tmp_path):
    site = tmp_path / "site"
    announce(site, "exits", "import sys; sys.exit('imported')")
    announce(site, "raises", "raise ImportError('imported')")
    announce(site, "slow", "import time, horovod.torch; time.sleep(600)")
    done = python(discovery_programs.import_the_packages, site, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize(
    "static, says",
    [
        ("devices = " + "[" * 5_000, "recursion depth"),
        ("\0", "line 1"),
        ("abi = [1, inf]\ndevices = ['x']\nprovides = ['comm']", "abi = "),
    ],
    ids=["nested", "binary", "infinite"],
)
def test_a_static_description_that_cannot_be_read_harms_no_one(site, static, says):
    announce(site, "alpha", "raise SystemExit('imported')", static=static)
    announce(site, "fine")
    assert {"alpha", "fine"} <= set(names())
    (problem,) = (p for p in _discovery.problems() if p.name == "alpha")
    assert problem.kind == "description" and says in problem.text and "alpha.hvd.toml" in problem.text
    assert len(problem.text) < 1000
