"""Tests hvd-core's wheels in dist/, each in a new environment of its Python, and writes docs/pythons.md.

    python tools/test_pythons.py [--no-torch] [--keep] [PYTHON ...]      # `make test-pythons`, after `make wheels`

For each Python: the wheel is installed with PATH lacking a compiler, two ranks reduce a NumPy array, then a part of the
tests runs from a copy that has no sources of hvd-core beside it, first with NumPy only, then with PyTorch. Where the
package index has only CUDA builds of PyTorch, CUDA's libraries (3 GB) are shared by all environments.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as tree
from importlib import metadata
from pathlib import Path

import interpreters
import wheels
from interpreters import Interpreter

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PLACE = ROOT / "build" / "pythons"
PAGE = ROOT / "docs" / "pythons.md"

TEST_TOOLS = ("pytest>=8,<9.2", "pytest-timeout>=2.3", "pytest-xdist>=3.7", "psutil>=5.9")
NUMPY_TESTS = (
    *("tests/hvd_core/frontend/test_frontend_ranks.py", "tests/hvd_core/frontend/test_objects.py"),
    *(
        "tests/hvd_core/engine/test_collectives.py",
        "tests/hvd_core/engine/test_process_sets.py",
        "tests/hvd_core/engine/test_join.py",
    ),
    *("tests/hvd_core/engine/test_python_engine.py", "tests/hvd_core/engine/test_numpy_face.py"),
    *("tests/hvd_core/engine/test_copied_stacks.py", "tests/hvd_core/engine/test_interruptions.py"),
    *("tests/horovod/runner/test_runner_engine.py", "tests/horovod/runner/test_runner_run_api.py"),
)
TORCH_TESTS = (
    *("tests/horovod/torch/test_torch_module.py", "tests/horovod/torch/test_torch_ops.py"),
    *("tests/horovod/torch/test_torch_functions.py", "tests/horovod/torch/test_torch_memory.py"),
    *("tests/horovod/torch/test_torch_optimizer.py", "tests/horovod/torch/test_torch_optimizer_use.py"),
)

HEAD = """# Python versions

One wheel of hvd-core per version, each tested in a new environment. `make wheels test-pythons` writes this page.

- *Build*: that of the oldest Python includes the engine, which all share; for the others only `_core` is compiled.
- *Install*: `pip install` of the wheel with its dependencies, without a compiler on PATH. *First allreduce*: the same and
  `horovodrun -np 2` with one NumPy allreduce.
- *NumPy tests*, *PyTorch tests*: passed, skipped and failed of the parts of `tests/` that `tools/test_pythons.py` names.

Free-threaded builds of Python (3.13t, 3.14t) are not supported: there are no wheels for them, and a build from source
stops with a message.

| Python | wheel MB | build s | install s | first allreduce s | NumPy | NumPy tests | PyTorch | PyTorch tests |
|---|---|---|---|---|---|---|---|---|
"""


class Environment:
    """A virtual environment below build/pythons."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.folder = PLACE / interpreter.tag
        shutil.rmtree(self.folder, ignore_errors=True)
        run([interpreter.path, "-m", "venv", "--without-pip", str(self.folder)])
        self.python = self.folder / "bin" / "python"
        self.site = self.folder / "lib" / f"python{interpreter.minor}" / "site-packages"

    def install(self, *arguments: str, path: str | None = None) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        run([*pip, "install", "-q", "--only-binary", ":all:", *arguments], self.variables(path))

    def version(self, name: str) -> str:
        (found,) = metadata.distributions(name=name, path=[str(self.site)])
        return found.version

    def variables(self, path: str | None = None) -> dict[str, str]:
        """The variables of the environment's programs. path: instead of PATH behind its own commands."""
        own = str(self.folder / "bin")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**kept, "PATH": own if path == "" else f"{own}:{os.environ['PATH']}"}

    def pytest(self, work: Path, name: str, *arguments: str) -> tuple[int, int, int]:
        """(passed, skipped, failed) of these tests; the output is in build/pythons."""
        results, log = PLACE / f"{self.folder.name}-{name}.xml", PLACE / f"{self.folder.name}-{name}.log"
        results.unlink(missing_ok=True)
        options = ["-q", "-n", "4", "-p", "no:cacheprovider", "-m", "not slow", f"--junitxml={results}"]
        with log.open("w") as output:
            command = [str(self.python), "-m", "pytest", *options, *arguments]
            subprocess.run(command, cwd=work, env=self.variables(), stdout=output, stderr=subprocess.STDOUT)
        if not results.exists():
            sys.exit(f"{log.read_text()[-4000:]}\n{' '.join(command)} has no results")
        suite = tree.parse(results).getroot().find("testsuite")
        assert suite is not None
        count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
        bad = count["failures"] + count["errors"]
        if bad:
            print("\n".join(re.findall(r"^(?:FAILED|ERROR) .*", log.read_text(), re.MULTILINE)))
        return count["tests"] - bad - count["skipped"], count["skipped"], bad


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-torch", action="store_true", help="without the tests on PyTorch")
    parser.add_argument("--keep", action="store_true", help="keep the environments, up to 2 GB each")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    options = parser.parse_args()
    facts = json.loads(wheels.FACTS.read_text()) if wheels.FACTS.exists() else {}
    PLACE.mkdir(parents=True, exist_ok=True)
    work = PLACE / "work"
    for name in ("tests", "examples"):
        shutil.copytree(ROOT / name, work / name, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", work)

    failed = 0
    for interpreter in interpreters.find(options.pythons):
        if interpreter.tag not in facts:
            print(f"{interpreter}: there is no wheel in dist/")
            continue
        row, bad = test(interpreter, facts[interpreter.tag], work, options)
        print(row, flush=True)
        (PLACE / f"{interpreter.tag}.row").write_text(f"{row}\n")
        failed += bad
    # The rows of earlier runs too: each may have been for one Python.
    PAGE.write_text(HEAD + "".join(path.read_text() for path in sorted(PLACE.glob("cp*.row"))))
    return 1 if failed else 0


def test(interpreter: Interpreter, built: dict, work: Path, options) -> tuple[str, int]:
    """The row of the table, and how many tests failed."""
    wheel = DIST / built["wheel"]
    environment = Environment(interpreter)
    begun = time.monotonic()
    environment.install(str(wheel), path="")
    installed = time.monotonic() - begun
    program = work / "tests/system/packaging" / "installed_programs.py"
    horovodrun = [str(environment.folder / "bin" / "horovodrun"), "-np", "2", str(environment.python)]
    said = run([*horovodrun, str(program), "sum_of_ranks"], environment.variables(path=""))
    reduced = time.monotonic() - begun
    assert said.count("of 2 has the sum") == 2, said

    environment.install(*TEST_TOOLS)
    numpy = environment.pytest(work, "numpy", *NUMPY_TESTS)
    torch, version = (0, 0, 0), "-"
    if not options.no_torch:
        reason = install_torch(environment)
        if reason:
            version = reason
        else:
            version = environment.version("torch")
            torch = environment.pytest(work, "torch", *TORCH_TESTS)
    cells = [
        ".".join(map(str, interpreter.version)),
        f"{wheel.stat().st_size / 1e6:.2f}",
        f"{built['seconds']:.0f}",
        f"{installed:.0f}",
        f"{reduced:.0f}",
        environment.version("numpy"),
        " / ".join(map(str, numpy)),
        version,
        " / ".join(map(str, torch)) if any(torch) else "-",
    ]
    if not options.keep:
        shutil.rmtree(environment.folder)
    return f"| {' | '.join(cells)} |", numpy[2] + torch[2]


def install_torch(environment: Environment) -> str | None:
    """Installs the PyTorch that hvd-core is tested with. Returns why it cannot be had, or None."""
    try:
        environment.install("--no-deps", torch_requirement())
    except SystemExit as error:
        return "not available" if "No matching distribution" in str(error) else "cannot be installed"
    (found,) = metadata.distributions(name="torch", path=[str(environment.site)])
    required = [text for text in found.requires or () if "extra ==" not in text]
    cuda = [text for text in required if text.startswith(("nvidia-", "cuda-toolkit"))]
    others = [text for text in required if not text.startswith(("nvidia-", "cuda-", "triton"))]
    environment.install(*others, "scikit-learn>=1.3", "tqdm>=4.65")
    if cuda:
        shared = PLACE / "cuda"
        if not shared.exists():
            environment.install("--target", str(shared), *cuda)
        (environment.site / "nvidia").symlink_to(shared / "nvidia")
    return None


def torch_requirement() -> str:
    """For example "torch==2.13.0"."""
    found = re.search(r"torch==[\d.]+", (ROOT / "pyproject.toml").read_text())
    if found is None:
        raise LookupError("pyproject.toml pins no PyTorch")
    return found[0]


def run(command: list[str], variables: dict[str, str] | None = None) -> str:
    """The output of a command. Ends this program with the output if it fails."""
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables
    )
    if result.returncode != 0:
        sys.exit(f"{result.stdout}\n{' '.join(command)} failed with exit status {result.returncode}")
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
