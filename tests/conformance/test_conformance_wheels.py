"""L0 on packages: a backend's module describes itself correctly, and the description costs little."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parents[2]

MODULE = """
from pathlib import Path
from hvd_core.backends import BackendDescriptor

def describe():
    {first}
    return BackendDescriptor(
        name="fake_sync", abi={abi}, devices={devices}, provides=frozenset({provides}), library=Path({library!r})
    )
"""
GOOD = {"first": "pass", "abi": (1, 0), "devices": ("fake_sync",), "provides": {"device"}}


def lint(tmp_path, library, **changes):
    (tmp_path / "fake_sync_plugin.py").write_text(MODULE.format(library=str(library), **{**GOOD, **changes}))
    info = tmp_path / "hvd_backend_fake_sync-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hvd-backend-fake-sync\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[hvd_core.backends]\nfake_sync = fake_sync_plugin:describe\n")
    paths = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "hvd_core.conformance", "fake_sync", "--level", "L0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)
    return {
        line.split()[1]: " ".join(line.split()[:1] + line.split()[4:])
        for line in done.stdout.splitlines()
        if " L0." in line
    }


def test_a_good_package(tmp_path, fake_sync_library):
    seen = lint(tmp_path, fake_sync_library)
    for case in ("L0.descriptor", "L0.import", "L0.probe"):
        assert seen[case].startswith("PASS"), seen


@pytest.mark.parametrize(
    ("changes", "case", "text"),
    [
        ({"first": "import numpy"}, "L0.import", "describing imports numpy"),
        (
            {"first": "__import__('os').environ['FAKE_SYNC'] = '1'"},
            "L0.import",
            "describing changes the environment",
        ),
        ({"abi": (1, 7)}, "L0.descriptor", "the descriptor has ABI 1.7, the library 1.0"),
        ({"provides": {"device", "comm"}}, "L0.descriptor", "the descriptor provides ['comm', 'device']"),
        ({"devices": ("near",)}, "L0.descriptor", "the descriptor names devices ['near']"),
    ],
    ids=["heavy", "environment", "abi", "provides", "devices"],
)
def test_a_package_with_a_fault(tmp_path, fake_sync_library, changes, case, text):
    seen = lint(tmp_path, fake_sync_library, **changes)
    assert seen[case].startswith("FAIL") and text in seen[case], seen
