"""Every C++ source compiles by itself. A usual build compiles several at once, which hides an include that one lacks."""

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def compiles(entry):
    """What the compiler says about one source; "" if it is content."""
    words = shlex.split(entry["command"])
    words[words.index("-o") + 1] = os.devnull
    done = subprocess.run(
        [*words, "-O0", "-fsyntax-only"], cwd=entry["directory"], capture_output=True, text=True
    )
    return f"{entry['file']}:\n{done.stderr}" if done.returncode else ""


@pytest.mark.slow  # five minutes of processor time
@pytest.mark.timeout(3600)
def test_every_source_compiles_by_itself(tmp_path):
    # As a build by hand, which includes the backends that are distributions of their own.
    words = ["cmake", "-S", str(ROOT), "-B", str(tmp_path), "-DHVD_UNITY=OFF", "-DHVD_IN_PLACE=ON"]
    python = [f"-DPython_EXECUTABLE={sys.executable}"]
    done = subprocess.run(words + python, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    entries = json.loads((tmp_path / "compile_commands.json").read_text(encoding="utf-8"))
    entries = [
        entry for entry in entries if tmp_path not in Path(entry["file"]).parents
    ]  # not what a build makes
    engine = {str(path) for path in (ROOT / "hvd_core" / "engine").rglob("*.cc")}
    assert engine <= {entry["file"] for entry in entries}
    with ThreadPoolExecutor(2) as pool:
        said = [text for text in pool.map(compiles, entries) if text]
    assert not said, "\n".join(said)
