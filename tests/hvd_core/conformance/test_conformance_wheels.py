"""L0 on packages: a backend's module describes itself correctly, and the description costs little."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutant_table import WHEELS, rows

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parents[3]

MODULE = """
from pathlib import Path
import os
from hvd_core.backends import Available, BackendDescriptor, Unavailable

def probe():
    return Available() if {works} else Unavailable("a file is missing")

def describe():
    {first}
    return BackendDescriptor(
        name="fake_sync", abi={abi}, devices={devices}, provides=frozenset({provides}), library=Path({library!r}),
        probe=probe,
    )
"""
GOOD = {"first": "pass", "abi": (1, 1), "devices": ("fake_sync",), "provides": {"device"}, "works": "True"}
# By the names of mutant_table.WHEELS: the change, and a part of the failure's text.
FAULTS = {
    "wheel_imports_compiled_module": ({"first": "import numpy"}, "describing imports numpy"),
    "wheel_changes_environment": (
        {"first": "os.environ['FAKE_SYNC'] = '1'"},
        "describing changes the environment",
    ),
    "wheel_names_another_abi": ({"abi": (1, 7)}, "the descriptor has ABI 1.7, the library 1.1"),
    "wheel_names_a_missing_table": (
        {"provides": {"device", "comm"}},
        "the descriptor provides ['comm', 'device']",
    ),
    "wheel_names_a_strange_device": ({"devices": ("near",)}, "the descriptor names devices ['near']"),
    "probe_breaks_on_a_blank": (
        {"works": "os.system('test -f ' + __file__) == 0"},
        "with a folder with a blank",
    ),
    "probe_breaks_on_other_letters": ({"works": "__file__.isascii()"}, "with a folder with a blank"),
    "probe_breaks_behind_a_link": (
        {"works": "os.path.realpath(__file__) == __file__"},
        "with a folder behind a link the answer is unavailable (a file is missing); otherwise",
    ),
    "probe_needs_its_current_folder": (
        {"works": "os.path.exists('a file')"},
        "with another current folder the answer is unavailable",
    ),
}


def lint(tmp_path, library, *cases, **changes):
    (tmp_path / "fake_sync_plugin.py").write_text(MODULE.format(library=str(library), **{**GOOD, **changes}))
    info = tmp_path / "hvd_backend_fake_sync-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hvd-backend-fake-sync\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[hvd_core.backends]\nfake_sync = fake_sync_plugin:describe\n")
    paths = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    chosen = [word for case in cases for word in ("--case", case)]
    command = [sys.executable, "-m", "hvd_core.conformance", "fake_sync", *(chosen or ["--level", "L0"])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a file").touch()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
        check=False,
        cwd=tmp_path / "here",
    )
    return {
        line.split()[1]: " ".join(line.split()[:1] + line.split()[4:])
        for line in done.stdout.splitlines()
        if " L0." in line
    }


def test_a_good_package(tmp_path, fake_sync_library):
    seen = lint(tmp_path, fake_sync_library)
    for case in ("L0.descriptor", "L0.import", "L0.probe", "L0.paths"):
        assert seen[case].startswith("PASS"), seen


@pytest.mark.parametrize(
    ("fault", "case"), [pytest.param(*row, id=row[0]) for row in rows(WHEELS) if row[0] in FAULTS]
)
def test_a_package_with_a_fault(tmp_path, fake_sync_library, fault, case):
    changes, text = FAULTS[fault]
    seen = lint(tmp_path, fake_sync_library, case, **changes)
    assert seen[case].startswith("FAIL") and text in seen[case], seen


def test_every_fault_has_a_row():
    assert {fault for fault, _ in rows(WHEELS)} == set(FAULTS) | {"wheel_and_library_differ_in_version"}
