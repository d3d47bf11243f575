"""``hvd plugin doctor`` and ``check``: the phase that fails, and why; exit codes that scripts can go by."""

import subprocess

import pytest


def steps(hvd, *arguments, code):
    found = hvd.json("plugin", "doctor", *arguments, code=code)
    return {(step["backend"], step["phase"]): step for step in found}


def compiled(folder, source):
    library = folder / "libwidget_backend.so"
    (folder / "widget.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "widget.c"], check=True, timeout=200)
    return library


def test_a_good_backend_passes_every_phase(hvd):
    found = steps(hvd, "shm", code=0)
    assert [phase for backend, phase in found if backend] == ["discover", "describe", "probe", "load", "open"]
    assert {step["verdict"] for step in found.values()} == {"good"}
    assert "right values" in found["shm", "open"]["text"]


def test_environment_is_shown_without_secrets(hvd):
    hvd.variables |= {"HOROVOD_SECRET_KEY": "c0ffee", "HOROVOD_CYCLE_TIME": "2"}
    text = hvd.run("plugin", "doctor", "shm", "--no-open")
    assert "HOROVOD_CYCLE_TIME=2" in text
    assert "c0ffee" not in text


@pytest.mark.parametrize("variable", ["HOROVOD_CYCLE_TIME", "HOROVOD_ELASTIC_TIMEOUT"])
def test_an_invalid_setting_is_a_finding(hvd, variable):
    hvd.variables |= {variable: "soon"}
    step = steps(hvd, "shm", "--no-open", code=1)["", "environment"]
    assert step["verdict"] == "bad" and variable in step["text"]


def test_missing_symbol_is_named_and_the_places_searched(hvd, tmp_path):
    library = compiled(
        tmp_path,
        "void widget_is_gone(void);\nint hvd_backend_entry_v1(void) { widget_is_gone(); return 0; }\n",
    )
    hvd.wheel("widget", library=library)
    load = steps(hvd, "widget", code=1)["widget", "load"]
    assert load["verdict"] == "bad"
    assert any("undefined symbol" in line and "widget_is_gone" in line for line in load["more"])
    assert any(line.startswith("searched: ") for line in load["more"])


def test_library_without_an_entry_says_so(hvd, tmp_path):
    hvd.wheel("widget", library=compiled(tmp_path, "int something_else(void) { return 0; }\n"))
    load = steps(hvd, "widget", code=1)["widget", "load"]
    assert "hvd_backend_entry_v1" in " ".join([load["text"], *load["more"]])


def test_what_does_not_work_here_is_bad_only_when_it_was_named(hvd):
    hvd.wheel("away", answer='Unavailable("no widget is plugged in", "plug one in")')
    named = steps(hvd, "away", "--no-open", code=1)["away", "probe"]
    assert (named["verdict"], named["text"], named["more"]) == (
        "bad",
        "no widget is plugged in",
        ["fix: plug one in"],
    )
    assert steps(hvd, "--no-open", code=0)["away", "probe"]["verdict"] == "note"


def test_broken_and_duplicate_wheels_are_findings(hvd):
    hvd.wheel("broken", code="import widget_framework_that_is_not_there\n")
    hvd.wheel("twice")
    hvd.wheel("twice", suffix="-fork")
    found = hvd.json("plugin", "doctor", "--no-open", code=1)
    bad = {(step["backend"], step["phase"]) for step in found if step["verdict"] == "bad"}
    assert bad == {("broken", "describe"), ("twice", "discover")}
    # One complaint of discovery's does not keep the others from being examined.
    assert ("tcp", "load") in {(step["backend"], step["phase"]) for step in found}


def test_a_mistyped_option_is_found(hvd):
    hvd.variables["HOROVOD_BACKEND_SHM_SPIN_USS"] = "3"
    load = steps(hvd, "shm", "--no-open", code=1)["shm", "load"]
    assert "HOROVOD_BACKEND_SHM_SPIN_USS" in load["text"]
    assert "spin_us" in load["text"]


def test_check_runs_the_kit(hvd):
    text = hvd.run("plugin", "check", "shm", "-np", "2", "--case", "L2.barrier")
    assert "PASS" in text
    assert "L2.barrier" in text


@pytest.mark.parametrize("arguments", [[], ["nix"], ["shm", "--case", "L9.nothing"], ["shm", "-np", "none"]])
def test_check_of_what_cannot_be_checked_is_refused(hvd, arguments):
    hvd.run("plugin", "check", *arguments, code=2)
    assert hvd.errors
