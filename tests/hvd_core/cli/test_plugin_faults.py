"""Every fault of a plugin in every phase (plugin_faults.py): the commands survive it and name it, and a job that does
not use the plugin is not harmed."""

from pathlib import Path

import pytest

import plugin_faults
from command_line import ROOT
from plugin_faults import FAULTS, install

PROMPT = [fault for fault in FAULTS if not fault.hangs]
# A limit that only a phase that hangs exceeds; a library that hangs is given ten times as long.
HANGING = [
    pytest.param(
        f,
        1 if f.phase == "load" else 4,
        id=f.name,
        marks=[pytest.mark.slow] * (f.phase == "load" or f.name == "d_endless"),
    )
    for f in FAULTS
    if f.hangs
]


def patient(hvd, folder, timeout_s):
    """Sets the limit of probes, on which those of other phases depend."""
    file = folder / "plugins.toml"
    file.write_text(f"[probe]\ntimeout_s = {timeout_s}\n")
    hvd.variables["HOROVOD_PLUGINS_TOML"] = str(file)


@pytest.fixture
def all_of_them(hvd, tmp_path):
    patient(hvd, tmp_path, 60)
    return {install(hvd, fault, tmp_path): fault for fault in PROMPT}


def check(fault, steps):
    """The doctor's steps name the fault in its phase, after the phases that were finished."""
    last = steps[-1]
    assert last["phase"] == fault.phase, steps
    assert fault.says in last["text"], last
    assert fault.more in " ".join(last["more"]), last
    assert last["verdict"] == "bad" or (fault.phase == "probe" and last["verdict"] == "note")
    finished = {"describe": [], "probe": ["describe"], "load": ["describe", "probe"]}[fault.phase]
    assert [s["phase"] for s in steps if s["verdict"] == "good"] == ["discover", *finished]


def test_the_doctor_names_backend_phase_and_end(hvd, all_of_them):
    found = hvd.json("plugin", "doctor", "--no-open", code=1)
    for name, fault in all_of_them.items():
        check(fault, [step for step in found if step["backend"] == name])
    assert ("tcp", "load", "good") in {(s["backend"], s["phase"], s["verdict"]) for s in found}


def test_the_list_shows_each(hvd, all_of_them):
    rows = {row["name"]: row for row in hvd.json("plugin", "list")["backends"]}
    for name, fault in all_of_them.items():
        row = rows[name]
        if fault.phase == "load":  # the list loads no library; it looks whether there is one
            assert row["status"] == ("broken" if name in ("l-absent", "l-abi") else "available"), row
        elif fault.says.startswith("its process"):
            assert (row["status"], row["detail"]) == ("broken", f"{fault.says} in the phase {fault.phase}"), (
                row
            )
        else:
            assert row["status"] == ("broken" if fault.phase == "describe" else "unavailable"), row
            assert (fault.more or fault.says) in f"{row['detail']} {row['fix']}", row
    assert rows["shm"]["status"] == "available"
    assert "a banner" in hvd.errors


# With every run: those that end the process, and one of each phase that do not.
OFTEN = [f for f in PROMPT if f.says.startswith("its process")]
OFTEN += [
    next(f for f in PROMPT if f.phase == phase and f not in OFTEN) for phase in ("describe", "probe", "load")
]


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, id=f.name, marks=[] if f in OFTEN else [pytest.mark.slow]) for f in PROMPT],
)
def test_the_configuration_says_how_a_job_would_stop(hvd, tmp_path, fault):
    patient(hvd, tmp_path, 60)
    name = install(hvd, fault, tmp_path)
    hvd.variables["HOROVOD_BACKEND"] = name
    found = hvd.json("config", "--explain", code=1)
    assert f"'{name}'" in found["fault"]
    if fault.says.startswith("its process"):
        assert f"{fault.says} in the phase {fault.phase}" in found["fault"]
        assert f"check: hvd plugin doctor {name}" in found["fault"]
    elif fault.library != b"some text":
        assert (fault.more or fault.says) in found["fault"]


def test_show_prints_the_finished_phases(hvd, tmp_path):
    patient(hvd, tmp_path, 60)
    named = {fault.name: fault for fault in PROMPT}
    shown = hvd.json("plugin", "show", install(hvd, named["p_crashes"], tmp_path), code=1)
    assert shown["descriptor"]["devices"] == ["widget"]
    assert shown["probe"]["reason"] == "its process was killed by SIGSEGV in the phase probe"
    shown = hvd.json("plugin", "show", install(hvd, named["l_entry_exits"], tmp_path), code=1)
    assert shown["probe"] == {"available": True, "detail": "all well"}
    assert shown["fault"].endswith("its process exited with code 5 in the phase load")
    hvd.run("plugin", "show", install(hvd, named["d_crashes"], tmp_path), code=2)
    assert "backend 'd-crashes' (hvd-backend-d-crashes 1.5): its process was killed by SIGSEGV" in hvd.errors


@pytest.mark.parametrize("fault, timeout_s", HANGING)
def test_what_hangs_is_ended_at_its_limit(hvd, tmp_path, fault, timeout_s):
    patient(hvd, tmp_path, timeout_s)
    name = install(hvd, fault, tmp_path)
    check(fault, [s for s in hvd.json("plugin", "doctor", name, "--no-open", code=1) if s["backend"] == name])


def test_a_library_without_a_wheel_has_its_phases(hvd, tmp_path):
    fault = next(f for f in PROMPT if f.name == "l_entry_crashes")
    install(hvd, fault, tmp_path)
    hvd.variables["HOROVOD_BACKEND_PATH_MINE"] = str(tmp_path / "libfault_entry_crashes.so")
    found = hvd.json("plugin", "doctor", "mine", "--no-open", code=1)
    assert [(s["phase"], s["verdict"]) for s in found if s["backend"] == "mine"] == [
        ("discover", "good"),
        ("describe", "skipped"),
        ("probe", "skipped"),
        ("load", "bad"),
    ]
    assert found[-1]["text"] == "its process was killed by SIGSEGV"
    hvd.variables["HOROVOD_BACKEND_PATH_MINE"] = str(tmp_path / "absent.so")
    last = hvd.json("plugin", "doctor", "mine", "--no-open", code=1)[-1]
    assert (last["phase"], last["verdict"]) == ("load", "bad")
    assert "the file that HOROVOD_BACKEND_PATH_MINE names does not exist" in " ".join(last["more"])


def test_the_page_has_this_table():
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    begin, end = (
        "<!-- faults: begin (generated by tests/hvd_core/cli/test_plugin_faults.py) -->\n",
        "<!-- faults: end -->",
    )
    assert page.partition(begin)[2].partition(end)[0] == plugin_faults.table(), (
        "run: python tests/hvd_core/cli/test_plugin_faults.py"
    )


if __name__ == "__main__":
    file = Path(__file__).resolve().parents[3] / "docs" / "plugins.md"
    head, mark, rest = file.read_text(encoding="utf-8").partition(
        "tests/hvd_core/cli/test_plugin_faults.py) -->\n"
    )
    file.write_text(
        f"{head}{mark}{plugin_faults.table()}{rest[rest.index('<!-- faults: end') :]}", encoding="utf-8"
    )
