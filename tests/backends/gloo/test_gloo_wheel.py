"""The wheel of the gloo backend brings Gloo along: built, repaired, installed where nothing else is, and used there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = ROOT / "backends" / "gloo"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def tool(name, *words, **options):
    done = subprocess.run(
        [sys.executable, "-m", name, *map(str, words)], capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def repaired(gloo_library, tmp_path_factory):
    """Path of the wheel that auditwheel has made whole."""
    pytest.importorskip("auditwheel", reason="bundling needs the extra test")
    folder = tmp_path_factory.mktemp("gloo")
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    unpacked = Path(sys.prefix) / "gloo" / "usr"  # where `make` has put it if the system has none
    if unpacked.is_dir():
        variables["GLOO_ROOT"] = str(unpacked)
    tool(
        "build",
        "--wheel",
        "--no-isolation",
        "--skip-dependency-check",
        "-o",
        folder / "raw",
        PROJECT,
        env=variables,
        timeout=500,
    )
    (raw,) = (folder / "raw").glob("*.whl")
    tool("auditwheel", "repair", "-w", folder / "whole", raw, env=variables, timeout=200)
    (whole,) = (folder / "whole").glob("*.whl")
    return whole


def test_the_name_says_which_systems_it_is_for(repaired):
    # What Debian's libgloo asks of the C library, and no more: the compiler of the backend itself asks for less.
    assert repaired.name.startswith("hvd_backend_gloo-0.1.0-py3-none-manylinux_2_3")


def test_it_uses_its_own_gloo(repaired, tmp_path):
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, repaired],
        check=True,
        timeout=100,
    )
    program = Path(__file__).with_name("installed_gloo.py")
    done = subprocess.run(
        [sys.executable, program, site, ROOT / "tests/backends/host", ROOT / "tests"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    used = done.stdout.split()
    assert any("libgloo-" in path for path in used), used
    assert [path for path in used if not path.startswith(str(site))] == []
