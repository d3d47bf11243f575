"""The Pythons of this machine that hvd-core can be built for: one of each minor version."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OLDEST = (3, 10)

_PROBE = """
import importlib.util, json, os, sys, sysconfig
print(json.dumps({
    "version": sys.version_info[:3],
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "venv": importlib.util.find_spec("venv") is not None,
    "cpython": sys.implementation.name == "cpython",
}))
"""


@dataclass(frozen=True)
class Interpreter:
    path: str
    version: tuple[int, int, int]

    @property
    def minor(self) -> str:
        """For example "3.12"."""
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def tag(self) -> str:
        """For example "cp312"."""
        return f"cp{self.version[0]}{self.version[1]}"

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.path})"


def find(chosen: list[str]) -> list[Interpreter]:
    """The interpreters `chosen` (paths or commands), or all that PATH and pyenv have; oldest version first. Prints which
    it leaves out, and why."""
    found: dict[str, Interpreter] = {}
    for path in chosen or _candidates():
        facts = _facts(path)
        if facts is None:
            if chosen:
                print(f"{path} is left out: it does not run")
            continue
        python = Interpreter(shutil.which(path) or path, tuple(facts["version"]))
        if python.version[:2] < OLDEST and not chosen:
            continue
        reason = _reason_against(facts)
        if reason:
            print(f"{python} is left out: {reason}")
        else:
            found.setdefault(python.minor, python)
    return sorted(found.values(), key=lambda python: python.version)


def _candidates() -> list[str]:
    """Commands in PATH first, then pyenv's versions. pyenv's shims run whichever version is selected."""
    minors = range(OLDEST[1], 20)
    names = ["python3", *(f"python3.{minor}" for minor in minors)]
    folders = [Path(folder) for folder in os.get_exec_path() if Path(folder).name != "shims"]
    paths = [folder / name for folder in folders for name in names]
    pyenv = shutil.which("pyenv")
    if pyenv:
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True).stdout.strip()
        paths += [path for name in names[1:] for path in Path(root, "versions").glob(f"*/bin/{name}")]
    # An environment's python is the one that it was made from.
    resolved = dict.fromkeys(str(path.resolve()) for path in paths if os.access(path, os.X_OK))
    return list(resolved)


def _facts(path: str) -> dict | None:
    try:
        answer = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return json.loads(answer.stdout) if answer.returncode == 0 else None


def _reason_against(facts: dict) -> str | None:
    if not facts["cpython"]:
        return "it is not CPython"
    if tuple(facts["version"][:2]) < OLDEST:
        return f"hvd-core needs Python {'.'.join(map(str, OLDEST))} or newer"
    if facts["free_threaded"]:
        return "it is a free-threaded build, which hvd-core does not support"
    if not facts["headers"]:
        return "it lacks Python.h (on Debian: python3-dev)"
    if not facts["venv"]:
        return "it lacks the module venv (on Debian: python3-venv)"
    return None
