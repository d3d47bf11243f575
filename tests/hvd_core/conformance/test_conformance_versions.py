"""A wheel whose library is left of another build: the kit compares their versions."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "version, verdict", [pytest.param("0.1.0", "PASS", marks=pytest.mark.slow), ("0.2.0", "FAIL")]
)
def test_wheel_and_library_have_one_version(tmp_path, version, verdict):
    """The distribution comes first on the path, as one does that was installed over an older library."""
    pytest.importorskip("hvd_backend_eccl_stub")
    folder = tmp_path / f"hvd_backend_eccl_stub-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: hvd-backend-eccl-stub\nVersion: {version}\n"
    )
    entry = "[hvd_core.backends]\neccl_stub = hvd_backend_eccl_stub:describe\n"
    (folder / "entry_points.txt").write_text(entry)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "hvd_core.conformance", "eccl_stub", "-np", "1", "--case", "L0.descriptor"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert f"{verdict} " in done.stdout, done.stdout + done.stderr
    if verdict == "FAIL":
        assert "the wheel has version 0.2.0, the library in it 0.1.0" in done.stdout
