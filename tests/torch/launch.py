"""Runs the checks of a module on several ranks, through the real launcher, and collects what each rank found.

A module of checks (``ranks_*.py``) is a set of functions named ``check_*``, called on every rank in the
order of the file. A job runs several modules, one after the other: starting torch for each would cost seconds. The
first failure ends the job, and the module's later checks are reported as not run; the modules after it get a job of
their own. Used by the ``test_*.py`` files of this folder.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def checks_of(module: str, folder: Path = HERE) -> list[str]:
    """Names of the checks in a module, in the order of the file. Does not import it."""
    folder = folder if (folder / f"{module}.py").exists() else HERE
    tree = ast.parse((folder / f"{module}.py").read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("check_")]


def launch(
    ranks: int,
    command: list[str],
    env: dict | None = None,
    timeout: float = 280,
    launcher: list | None = None,
) -> str:
    """Run `command` on several ranks, by default with horovodrun; returns the output of all. Raises
    CalledProcessError, TimeoutExpired."""
    # One rank may import torch long before another.
    full_env = {**os.environ, "OMP_NUM_THREADS": "1", "HOROVOD_START_TIMEOUT": "200", **(env or {})}
    launcher = launcher or [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
    done = subprocess.run(
        launcher + command,
        cwd=HERE,
        env=full_env,
        timeout=timeout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout)
    return done.stdout


class Report:
    """The results of some modules on some ranks: the outcome of each check on each rank, and the jobs' output.

    `timeout`: seconds that a job may take. `launcher`: as in launch(). `wrap`: a program that starts the ranks' own.
    """

    def __init__(
        self, modules: list[str], ranks: int, env: dict | None = None, timeout: float = 280,
        launcher: list[str] | None = None, wrap: Path | None = None,
    ):  # fmt: skip
        self.ranks, self.launcher = ranks, launcher
        self.command = [sys.executable, *map(str, filter(None, [wrap])), str(HERE / "rank_main.py")]
        self.outcomes: list[dict[str, str]] = [{} for _ in range(ranks)]
        self.outputs: dict[str, str] = {}  # by module
        left = list(modules)
        while left:
            output, begun = self._run(left, env, timeout)
            self.outputs.update(dict.fromkeys(left[:begun], output))
            left = left[begun:]

    def _run(self, modules: list[str], env: dict | None, timeout: float) -> tuple[str, int]:
        """Run one job. Returns its output, and how many of the modules are finished: at least one."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                output = launch(self.ranks, [*self.command, folder, *modules], env, timeout, self.launcher)
            except subprocess.CalledProcessError as failure:
                output = failure.output
            except subprocess.TimeoutExpired as failure:
                partial = failure.output or b""
                output = f"TIMEOUT after {timeout} s\n" + (
                    partial if isinstance(partial, str) else partial.decode(errors="replace")
                )
            begun = 1
            for rank in range(self.ranks):
                path = Path(folder) / f"{rank}.jsonl"
                said = (
                    dict(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else {}
                )
                self.outcomes[rank].update(said)
                begun = max([begun, *(1 + modules.index(check.partition(".")[0]) for check in said)])
        return output, begun

    def verify(self, module: str, check: str) -> None:
        """Raise AssertionError, with the ranks' output, unless `check` passed on all ranks."""
        said = [outcome.get(f"{module}.{check}", "not run") for outcome in self.outcomes]
        if any(text != "ok" for text in said):
            lines = [f"{module}.{check} on {self.ranks} ranks"]
            lines += [f"--- rank {rank}: {text}" for rank, text in enumerate(said)]
            tail = "\n".join(self.outputs[module].splitlines()[-40:])
            raise AssertionError("\n".join(lines) + f"\n--- end of the job's output\n{tail}")
