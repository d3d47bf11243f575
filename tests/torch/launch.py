"""Runs the checks of a module on several ranks, through the real launcher, and collects what each rank found.

A module of checks (``ranks_*.py``) is a set of functions named ``check_*``, called on every rank in the
order of the file, in one job: starting torch for each check would cost seconds. The first failure ends the
job; later checks are reported as not run. Used by the ``test_*.py`` files of this folder.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def checks_of(module: str) -> list[str]:
    """Names of the checks in a module, in the order of the file. Does not import it."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("check_")]


def launch(ranks: int, command: list[str], env: dict | None = None, timeout: float = 100) -> str:
    """Run `command` on so many ranks; returns the output of all. Raises CalledProcessError,
    TimeoutExpired."""
    full_env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
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
    """What came of one job: the outcome of each check on each rank, and the job's output."""

    def __init__(self, module: str, ranks: int, env: dict | None = None, timeout: float = 100):
        self.module, self.ranks = module, ranks
        self.outcomes: list[dict[str, str]] = []
        with tempfile.TemporaryDirectory() as folder:
            try:
                command = [sys.executable, str(HERE / "rank_main.py"), module, folder]
                self.output = launch(ranks, command, env, timeout)
            except subprocess.CalledProcessError as failure:
                self.output = failure.output
            except subprocess.TimeoutExpired as failure:
                partial = failure.output or b""
                self.output = f"TIMEOUT after {timeout} s\n" + (
                    partial if isinstance(partial, str) else partial.decode(errors="replace")
                )
            for rank in range(ranks):
                path = Path(folder) / f"{rank}.jsonl"
                lines = path.read_text().splitlines() if path.exists() else []
                self.outcomes.append(dict(json.loads(line) for line in lines))

    def verify(self, check: str) -> None:
        """Raise AssertionError with what the ranks said unless `check` passed on all of them."""
        said = [outcome.get(check, "not run") for outcome in self.outcomes]
        if any(text != "ok" for text in said):
            lines = [f"{self.module}.{check} on {self.ranks} ranks"]
            lines += [f"--- rank {rank}: {text}" for rank, text in enumerate(said)]
            tail = "\n".join(self.output.splitlines()[-40:])
            raise AssertionError("\n".join(lines) + f"\n--- end of the job's output\n{tail}")
