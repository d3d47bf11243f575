"""Runs the checks of ranks_keras_*.py on several ranks through the real launcher, for one kind of Keras, and collects the
outcomes on each rank. One job runs several modules, as Keras and its framework take seconds to start.

Kinds: "tensorflow" and "torch" are horovod.keras with that backend, "tf.keras" is horovod.tensorflow.keras. The
interpreter is the tests' own, or that of HVD_TEST_KERAS_PYTHON (an environment with another TensorFlow, say).
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = os.environ.get("HVD_TEST_KERAS_PYTHON", sys.executable)


def checks_of(module: str) -> list[str]:
    """Names of the checks in a module, in the order of the file. Does not import it."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("check_")]


def environment(kind: str) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HOROVOD_START_TIMEOUT": "200",  # one rank may import Keras long before another
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "KERAS_BACKEND": "torch" if kind == "torch" else "tensorflow",
        "HVD_TEST_KERAS_KIND": kind,
    }


def launch(ranks: int, kind: str, command: list[str], timeout: float) -> tuple[int, str]:
    """Run a Python program with arguments on `ranks` ranks: its exit status and the output of all ranks."""
    launcher = [PYTHON, "-m", "horovod.runner.launch", "-np", str(ranks), PYTHON]
    try:
        done = subprocess.run(
            launcher + command,
            cwd=HERE,
            env=environment(kind),
            timeout=timeout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.TimeoutExpired as failure:
        said = failure.output or b""
        said = said if isinstance(said, str) else said.decode(errors="replace")
        return 124, f"TIMEOUT after {timeout} s\n{said}"
    return done.returncode, done.stdout


class Report:
    """The outcomes of modules on some ranks. After a failure the modules that have not begun get a job of their own."""

    def __init__(self, modules: list[str], ranks: int, kind: str, timeout: float):
        self.ranks, self.kind = ranks, kind
        self.outcomes: list[dict[str, str]] = [{} for _ in range(ranks)]
        self.outputs: dict[str, str] = {}
        left = list(modules)
        while left:
            with tempfile.TemporaryDirectory() as folder:
                _, output = launch(ranks, kind, [str(HERE / "keras_rank_main.py"), folder, *left], timeout)
                begun = 1
                for rank in range(ranks):
                    path = Path(folder) / f"{rank}.jsonl"
                    lines = path.read_text().splitlines() if path.exists() else []
                    said = dict(json.loads(line) for line in lines)
                    self.outcomes[rank].update(said)
                    begun = max([begun, *(1 + left.index(check.partition(".")[0]) for check in said)])
            self.outputs.update(dict.fromkeys(left[:begun], output))
            left = left[begun:]

    def verify(self, module: str, check: str) -> None:
        """Raise AssertionError with the ranks' outcomes unless `check` passed on all ranks."""
        said = [outcome.get(f"{module}.{check}", "not run") for outcome in self.outcomes]
        if any(text != "ok" for text in said):
            lines = [f"{module}.{check} on {self.ranks} ranks with {self.kind}"]
            lines += [f"--- rank {rank}: {text}" for rank, text in enumerate(said)]
            tail = "\n".join(self.outputs[module].splitlines()[-40:])
            raise AssertionError("\n".join(lines) + f"\n--- end of the job's output\n{tail}")
