"""Instructions of a program's main thread, counted by valgrind: a figure that other processes cannot disturb."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hvd_core.bench._conductor import Unavailable


def per_call(program: str, few: int, more: int, path: Path, env: Mapping[str, str] = {}) -> float:
    """Instructions of one call.

    Args:
        program: Python source that makes as many calls as its first argument says.
        few: calls of the run whose count is taken off: start, end and the first calls.
        more: further calls of the other run.
        path: the folder whose hvd_core is measured.
        env: environment variables; `{folder}` in a value stands for a temporary folder.
    """
    return (_count(program, few + more, path, env) - _count(program, few, path, env)) / more


def find() -> tuple[str, dict[str, str]]:
    """The program, the system's or the one that `make test-all` has unpacked, and the variables that it needs.

    Raises:
        Unavailable: there is none.
    """
    if system := shutil.which("valgrind"):
        return system, {}
    unpacked = Path(sys.prefix) / "valgrind" / "usr"
    if not (unpacked / "bin" / "valgrind").exists():
        raise Unavailable("valgrind is not installed")
    return str(unpacked / "bin" / "valgrind"), {"VALGRIND_LIB": str(unpacked / "libexec" / "valgrind")}


def _count(program: str, calls: int, path: Path, env: Mapping[str, str]) -> int:
    valgrind, needed = find()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "program.py"
        source.write_text(program)
        out = Path(folder) / "count"
        command = [valgrind, "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={out}"]
        environment = {
            **os.environ,
            **needed,
            "PYTHONPATH": str(path),
            "PYTHONHASHSEED": "0",
            "HOROVOD_TIMELINE": "",
            # Under valgrind a thread waits for its turn; polling would count as work.
            "HOROVOD_SPIN_US": "0",
            **{key: value.format(folder=folder) for key, value in env.items()},
        }
        done = subprocess.run(
            [*command, sys.executable, str(source), str(calls)],
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Unavailable(f"valgrind failed:\n{done.stderr[-2000:]}")
        first = Path(f"{out}-01")
        found = re.search(r"^(?:summary|totals): (\d+)", first.read_text(), re.MULTILINE)
        if not found:
            raise Unavailable(f"{first} has no total")
        return int(found[1])
