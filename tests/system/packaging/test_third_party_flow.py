"""A vendor's steps from our wheel to training on their device: no checkout, no build of hvd-core, no fork.

The project is made by ``hvd plugin new`` of the installed wheel, built against that wheel's headers, installed, found,
proved with the kit, and trained with. Each step uses what the one before left in the clean environment.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clean_environment import CleanEnvironment, build_wheel

ROOT = Path(__file__).resolve().parents[3]
_QUICK = ("-np", "2", "--quick", "--patience", "3")
# All levels but L5, whose ratios of speed are for quiet machines.
_KIT = (*_QUICK, *(part for level in range(5) for part in ("--level", f"L{level}")))
# The operations that the template serves.
_SERVED = tuple(
    f"L2.{name}" for name in ("allreduce", "broadcast", "allgatherv", "reducescatterv", "alltoallv")
)
# All about the wheel and its library, and some of each further level: the same sources pass the other cases under the
# name eccl_stub, in tests/hvd_core/conformance/test_conformance_backends.py.
_CASES = (*_SERVED, "L1.copy", "L2.barrier", "L3.two_streams", "L4.killed_rank")
_SOME = (*_QUICK, "--level", "L0", *(part for case in _CASES for part in ("--case", case)))

pytestmark = pytest.mark.timeout(900)


def test_project_is_the_vendor_s_alone(project):
    for path in project.rglob("*"):
        if path.is_file():
            found = re.search(
                r"eccl|gcu|tops", f"{path.relative_to(project)}\n{path.read_text()}", re.IGNORECASE
            )
            assert found is None, f"{path}: {found}"
    tasks = re.findall(
        r"hvd plugin check acme (--case L\d\.\w+)", (project / "csrc" / "acme_comm.cc").read_text()
    )
    assert "--case L2.allreduce" in tasks
    assert "hvd plugin check acme --level L1" in (project / "README.md").read_text()


def test_backend_is_found_and_can_work_here(installed):
    document = json.loads(installed.run("hvd", "plugin", "list", "--json"))
    rows = {row["name"]: row for row in document["backends"]}
    assert (rows["acme"]["status"], rows["acme"]["distribution"]) == ("available", "hvd-backend-acme")
    assert rows["acme"]["devices"] == ["npu"]
    assert document["problems"] == []


def verdicts_of(installed, *words):
    report = installed.folder / "report.json"
    installed.run("hvd", "plugin", "check", "acme", *words, "--json", str(report), timeout=700)
    verdicts = {case["case"]: case["verdict"] for case in json.loads(report.read_text())["cases"]}
    assert "FAIL" not in verdicts.values()
    # What the template leaves to hvd-core is shown.
    assert {verdicts[case] for case in _CASES} == {"PASS", "EMULATED"}
    assert [case for case in _CASES if verdicts[case] == "EMULATED"] == ["L2.barrier"]
    return verdicts


def test_backend_passes_the_kit(installed):
    verdicts = verdicts_of(installed, *_SOME)
    assert sum(case.startswith("L0.") for case in verdicts) > 10


@pytest.mark.slow
def test_backend_passes_the_whole_kit(installed):
    verdicts_of(installed, *_KIT)


def test_doctor_opens_the_device(installed):
    steps = json.loads(installed.run("hvd", "plugin", "doctor", "acme", "--json"))
    found = {step["phase"]: step["verdict"] for step in steps if step["backend"] == "acme"}
    assert found == dict.fromkeys(("discover", "describe", "probe", "load", "open"), "good")


def test_missing_vendor_library_is_said_with_the_remedy(installed):
    missing = {"HOROVOD_BACKEND_ACME_LIBRARY": "libacme.so.9"}
    rows = json.loads(installed.run("hvd", "plugin", "list", "--json", **missing))["backends"]
    (row,) = (row for row in rows if row["name"] == "acme")
    assert row["status"] == "unavailable"
    assert "libacme.so.9: cannot open shared object file" in row["detail"]
    assert "HOROVOD_BACKEND_ACME_LIBRARY" in row["fix"]
    said = installed.run("hvd", "plugin", "doctor", "acme", code=1, **missing)
    assert "acme: probe fails: libacme.so.9" in said


def test_same_name_again_is_refused(installed, tmp_path):
    said = installed.run("hvd", "plugin", "new", "acme", "--device", "npu", code=2, cwd=tmp_path)
    assert "a backend of this name is installed (hvd-backend-acme 0.1.0)" in said


@pytest.mark.slow
@pytest.mark.timeout(3600)  # everything is compiled from nothing, three packages' build tools are downloaded
def test_both_build_from_source_in_isolation(tmp_path):
    """A packager's steps: sdist and wheel of hvd-core, then a plugin's wheel, each in an isolated environment of pip."""
    source = tmp_path / "source"
    skipped = shutil.ignore_patterns("build", "dist", ".venv*", "*.so", "__pycache__", ".git")
    shutil.copytree(ROOT, source, ignore=skipped)
    links = f"{os.environ.get('PIP_FIND_LINKS', '')} {tmp_path / 'dist'}".strip()
    env = {**os.environ, "PIP_FIND_LINKS": links}
    command = [sys.executable, "-m", "build", "-o", str(tmp_path / "dist"), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=3000, env=env)
    assert result.returncode == 0, f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    assert {path.suffix for path in (tmp_path / "dist").iterdir()} == {".gz", ".whl"}
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    environment = CleanEnvironment(tmp_path / "venv")
    environment.install(wheel)
    environment.run(
        "hvd",
        "plugin",
        "new",
        "acme",
        "--device",
        "npu",
        "--store",
        "--library",
        "libacme.so.2",
        cwd=tmp_path,
    )
    build_wheel(tmp_path / "hvd-backend-acme", env=env)
    (built,) = (tmp_path / "hvd-backend-acme" / "dist").glob("*.whl")
    environment.install(built)
    simulator = environment.site / "hvd_backend_acme" / "lib" / "libacme_sim.so"
    chosen = {"HOROVOD_BACKEND_ACME_LIBRARY": str(simulator)}
    environment.run("hvd", "plugin", "check", "acme", *_KIT, timeout=700, **chosen)
