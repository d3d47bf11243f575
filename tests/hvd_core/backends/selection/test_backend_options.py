"""Options of backends: how files hand them on, and every message about them, word for word."""

from dataclasses import replace

import pytest

from golden_texts import golden
from hvd_core._config.plugins_toml import load
from hvd_core.backends._options import Option, read_option
from hvd_core.backends._selection import options
from listed_backends import ECCL


def option(name, kind, limits="", fallback="", doc="what it does"):
    return {"name": name, "type": kind, "range": limits, "fallback": fallback, "doc": doc}


BACKEND = replace(
    ECCL,
    options=(
        option("max_channels", "int", "1..32", "8", "Most channels at once."),
        option("buffer", "size", "4KiB..1GiB", "4MiB", "Bytes of a channel's buffer."),
        option("share", "float", "0..1"),
        option("check", "bool"),
        option("mode", "enum", "fast, exact", "fast"),
        option("iface", "str", "names or networks"),
        option("depth", "int", "0.."),
    ),
)
NAMES = ("shm", "tcp", "eccl", "eccl_stub")


@pytest.fixture(autouse=True)
def _nothing_handed_on():
    options._handed_on.clear()


@pytest.fixture
def files(tmp_path):
    def made(text):
        (tmp_path / "site.toml").write_text(text)
        return load({}, tmp_path / "site.toml")

    return made


def refused(name, folder=None, **environ):
    with pytest.raises(ValueError) as caught:
        options.check((BACKEND,), environ, lambda: NAMES)
    golden(name, str(caught.value), folder=folder)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("max_channels", ["1", "32", " 8 ", ""], ["0", "33", "1.5", "x", "8k", "-1"]),
        ("buffer", ["4096", "4k", "64 KiB", "1G", "1024mb"], ["4095", "2g", "k", "1.5k", "-4k"]),
        ("share", ["0", "0.5", "1", "1e-3"], ["1.1", "-0.1", "half", "nan"]),
        ("check", ["0", "1", "true", "OFF"], ["2", "maybe"]),
        ("mode", ["fast", "EXACT"], ["faster", "fast, exact"]),
        ("iface", ["anything", "1"], []),
        ("depth", ["0", "1000000"], ["-1", "deep"]),
    ],
)
def test_types_and_ranges(name, good, bad):
    rule = next(o for o in BACKEND.options if o["name"] == name)
    assert [text for text in good if options.fault(rule, text) is not None] == []
    assert [text for text in bad if options.fault(rule, text) is None] == []


def test_good_options_pass():
    environ = {
        "HOROVOD_BACKEND_ECCL_MAX_CHANNELS": "4",
        "HOROVOD_BACKEND_ECCL_LIBRARY": "/opt/x.so",
        "HOROVOD_BACKEND_ECCL_STUB_ANYTHING": "1",  # another backend's
        "HOROVOD_BACKEND_PATH_ECCL": "/x.so",
        "HOROVOD_BACKEND_TCP_NO_SUCH": "1",  # not chosen
        "HOROVOD_BACKEND_SPEC": "{}",
    }
    options.check((BACKEND,), environ, lambda: NAMES)


def test_a_library_under_development_may_declare_none():
    young = replace(BACKEND, origin="HOROVOD_BACKEND_PATH_ECCL", options=())
    options.check((young,), {"HOROVOD_BACKEND_ECCL_ANYTHING": "1"}, lambda: NAMES)
    with pytest.raises(ValueError, match="has no option 'anything'"):
        options.check((replace(young, origin="x 1"),), {"HOROVOD_BACKEND_ECCL_ANYTHING": "1"}, lambda: NAMES)


def test_names_are_asked_for_only_when_that_matters():
    def scan():
        raise AssertionError("the names of other backends are not needed here")

    options.check((BACKEND,), {"HOROVOD_BACKEND_ECCL_DEPTH": "3"}, scan)


def test_messages_about_variables():
    refused("option_unknown", HOROVOD_BACKEND_ECCL_MAX_CHANELS="8")
    refused("option_unknown_far_off", HOROVOD_BACKEND_ECCL_ZZZ="8")
    refused("option_wrong_int", HOROVOD_BACKEND_ECCL_MAX_CHANNELS="many")
    refused("option_wrong_size", HOROVOD_BACKEND_ECCL_BUFFER="2GiB")
    refused("option_wrong_enum", HOROVOD_BACKEND_ECCL_MODE="exakt")


def test_files_hand_on_only_what_is_unset(files):
    config = files(
        '[backend.eccl]\nlibrary = "/opt/l.so"\noptions = { max_channels = 8, check = true, mode = "exact" }\n'
        'env = { ECCL_DEBUG = "WARN", ECCL_NET = "a" }\n'
    )
    environ = {"HOROVOD_BACKEND_ECCL_MODE": "fast", "ECCL_NET": "b"}
    options.export("eccl", config.backend("eccl"), environ)
    expected = {
        "HOROVOD_BACKEND_ECCL_MODE": "fast",
        "ECCL_NET": "b",
        "HOROVOD_BACKEND_ECCL_LIBRARY": "/opt/l.so",
        "HOROVOD_BACKEND_ECCL_MAX_CHANNELS": "8",
        "HOROVOD_BACKEND_ECCL_CHECK": "1",
        "ECCL_DEBUG": "WARN",
    }
    assert environ == expected
    assert options.origin("HOROVOD_BACKEND_ECCL_CHECK", environ).endswith("site.toml:3")
    assert options.origin("HOROVOD_BACKEND_ECCL_MODE", environ) == "HOROVOD_BACKEND_ECCL_MODE"
    options.check((BACKEND,), environ, lambda: NAMES)
    # A second init() sees a changed file; what was set by hand meanwhile stays.
    environ["HOROVOD_BACKEND_ECCL_CHECK"] = "off"
    changed = files("[backend.eccl]\noptions = { max_channels = 9, check = true }\n")
    options.export("eccl", changed.backend("eccl"), environ)
    assert (
        environ["HOROVOD_BACKEND_ECCL_MAX_CHANNELS"] == "9" and environ["HOROVOD_BACKEND_ECCL_CHECK"] == "off"
    )


def test_messages_about_files(files, tmp_path):
    config = files("[backend.eccl.options]\nmax_chanels = 8\ndepth = 1.5\n")
    environ = {}
    options.export("eccl", config.backend("eccl"), environ)
    refused("option_in_file", tmp_path, **environ)


def test_an_option_of_a_backend_in_python_follows_the_same_types(monkeypatch):
    with pytest.raises(ValueError, match="option 'depth' has the type 'number'; known: int, size, float"):
        Option("depth", "number", "4", "1..64", "How deep.")
    with pytest.raises(ValueError, match="the default of option 'depth' must be a whole number from 1 to 64"):
        Option("depth", "int", "65", "1..64", "How deep.")
    monkeypatch.setenv("HOROVOD_BACKEND_X_HOLDS", "64KiB")
    assert read_option("x", Option("holds", "size", "", "1..", "How much.")) == 65536
    monkeypatch.setenv("HOROVOD_BACKEND_X_EAGER", "Yes")
    assert read_option("x", Option("eager", "bool", "0", "", "Whether.")) is True


def test_the_library_that_a_probe_has_found_is_the_default_of_the_option():
    environ = {}
    options.found_by_probe("x", "/opt/x/libx.so", environ)
    assert environ == {"HOROVOD_BACKEND_X_LIBRARY": "/opt/x/libx.so"}
    assert options.origin("HOROVOD_BACKEND_X_LIBRARY", environ) == "its probe"
    environ = {"HOROVOD_BACKEND_X_LIBRARY": "/mine.so"}
    options.found_by_probe("x", "/opt/x/libx.so", environ)
    assert environ == {"HOROVOD_BACKEND_X_LIBRARY": "/mine.so"}
