"""``hvd plugin list``: every backend with its status, in any terminal, at little cost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import DESCRIBE, ROOT
from hvd_core._cli.plugin_list import survey
from hvd_core._config import plugins_toml
from hvd_core._config.hints import pip_install

PRINT_MODULES = Path(__file__).with_name("print_modules.py")


def rows(hvd, *arguments):
    return {
        (row["name"], row["distribution"]): row for row in hvd.json("plugin", "list", *arguments)["backends"]
    }


def test_embedded_backends_are_listed(hvd):
    found = rows(hvd)
    assert found["shm", "hvd-core"]["status"] == "available"
    assert found["tcp", "hvd-core"]["provides"] == ["comm", "device"]
    text = hvd.run("plugin", "list")
    assert "embedded" in text
    assert "available" in text


def test_each_kind_of_wheel_has_its_status_and_none_stops_the_others(hvd, tmp_path):
    library = tmp_path / "libgood.so"
    library.write_bytes(b"not opened by the list")
    hvd.wheel("good", library=library)
    hvd.wheel("absent")
    hvd.wheel("missing", answer='Unavailable("libwidget.so.2: no such file", "source /opt/widget/env.sh")')
    hvd.wheel("broken", code="import widget_framework_that_is_not_there\n")
    hvd.wheel("leaver", code="raise SystemExit(3)\n")
    hvd.wheel("twice")
    hvd.wheel("twice", suffix="-fork")
    hvd.wheel("tcp")
    found = rows(hvd)
    good = found["good", "hvd-backend-good"]
    assert (good["status"], good["detail"], good["version"]) == ("available", "all well", "1.5")
    assert (good["devices"], good["provides"], good["priority"]) == (["widget"], ["comm", "device"], 70)
    missing = found["missing", "hvd-backend-missing"]
    assert (missing["status"], missing["fix"]) == ("unavailable", "source /opt/widget/env.sh")
    assert missing["detail"] == "libwidget.so.2: no such file"
    absent = found["absent", "hvd-backend-absent"]
    assert absent["status"] == "broken"
    assert "/nowhere/libx.so" in absent["detail"]
    broken = found["broken", "hvd-backend-broken"]
    assert broken["status"] == "broken"
    assert "widget_framework_that_is_not_there" in broken["detail"]
    assert "pip uninstall hvd-backend-broken" in broken["fix"]
    assert found["leaver", "hvd-backend-leaver"]["status"] == "broken"
    for distribution in ("hvd-backend-twice", "hvd-backend-twice-fork"):
        assert found["twice", distribution]["status"] == "duplicate"
    assert found["tcp", "hvd-core"]["status"] == "available"
    assert [row["detail"] for row in found.values() if row["status"] == "ignored"] == [
        "an embedded backend has this name, and nothing can replace it."
    ]
    text = hvd.run("plugin", "list")
    assert "missing: source /opt/widget/env.sh" in text
    assert "duplicate" in text


def test_probing_can_be_left_out(hvd):
    hvd.wheel("slow", answer='__import__("time").sleep(60)')
    assert rows(hvd, "--no-probe")["slow", "hvd-backend-slow"]["status"] == "not probed"


def test_an_unpackaged_library_is_listed_as_what_it_is(hvd, tmp_path):
    hvd.variables["HOROVOD_BACKEND_PATH_MINE"] = str(tmp_path / "libmine.so")
    assert rows(hvd)["mine", ""]["status"] == "broken"
    assert "HOROVOD_BACKEND_PATH_MINE" in hvd.run("plugin", "list")


@pytest.mark.parametrize("width", [40, 72])
def test_lines_fit_the_width_that_there_is(hvd, width):
    hvd.variables |= {"COLUMNS": str(width)}
    hvd.wheel(
        "missing", answer='Unavailable("a reason that goes on for longer than any narrow terminal is wide")'
    )
    text = hvd.run("plugin", "list")
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_output_that_nobody_reads_is_no_error(hvd, form):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hvd_core._cli", "plugin", "list", *form]
    with os.fdopen(writer, "wb") as pipe:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, env=environment, timeout=200)
    assert (ended.returncode, ended.stderr) == (0, b"")


def loaded(hvd, *arguments):
    """The modules that a run of the command loads."""
    return set(hvd.run(*arguments, program=(PRINT_MODULES,)).rpartition("MODULES ")[2].split())


def test_what_costs_time_is_not_loaded(hvd):
    # Instead of a stopwatch, which says more about the machine than about the command.
    assert not loaded(hvd, "--help") & {"rich", "numpy", "stevedore", "importlib.metadata", "hvd_core._core"}
    assert not loaded(hvd, "plugin", "list") & {"numpy", "hvd_core._core", "asyncio", "unittest"}


def test_what_the_site_forbids_is_shown_and_not_imported(hvd, tmp_path, monkeypatch):
    policy = tmp_path / "site.toml"
    policy.write_text('[selection]\ndeny = ["tcp", "evil"]\n')
    hvd.wheel("evil", code="raise SystemError('was imported')\n")
    monkeypatch.syspath_prepend(hvd.site)
    found, _ = survey(plugins_toml.load({}, site=policy))
    rows = {row.name: row for row in found}
    assert rows["shm"].status == "available"
    assert rows["tcp"].status == rows["evil"].status == "vetoed"
    assert f"{policy}:2 denies it" in rows["evil"].detail
    assert "plugin_evil" not in sys.modules


def test_what_plugins_print_does_not_spoil_the_document(hvd):
    hvd.wheel(
        "chatty", code="import os\nprint('a banner')\nos.write(1, b'another\\n')\nraise ImportError('gone')\n"
    )
    assert rows(hvd)["chatty", "hvd-backend-chatty"]["status"] == "broken"
    assert "a banner" in hvd.errors and "another" in hvd.errors


def test_fix_stands_apart_from_what_is_wrong(hvd):
    code = DESCRIBE.format(name="newer", library="/nowhere/libx.so", answer="Available()")
    hvd.wheel("newer", code=code.replace("abi=(1, 0)", "abi=(2, 0)"))
    row = rows(hvd)["newer", "hvd-backend-newer"]
    assert row["detail"].endswith("offers 1.1.")
    assert row["fix"] == pip_install("hvd-core", "-U")
