"""Builds what is released into dist/: hvd-core's wheel for each Python, the other distributions' wheels, and the sdist.

    python tools/wheels.py [-o DIST] [PYTHON ...]      # `make wheels`; default: each Python of PATH and pyenv

All Pythons share one build folder: only the module `_core` is compiled again for each. Where auditwheel is installed it
gives the wheels their manylinux tag, which is that of this machine's tool chain; wheels for older distributions are
built in manylinux images by cibuildwheel (pyproject.toml). The same sources give the same bytes: SOURCE_DATE_EPOCH is
the time of the last commit unless it is set.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import interpreters
from interpreters import Interpreter

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: the copy that pip brings
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "wheels"
# The file name of each Python's wheel and the seconds of its build, for tools/test_pythons.py.
FACTS = BUILD / "built.json"
MOST_BYTES = 4_000_000

# Wheels for any Python. The gloo backend is built only where Gloo is.
BACKENDS = ("eccl_stub", "mpi", "nccl", "gloo")
PURE = ("horovod", "sparkdl")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist", metavar="DIST")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    options = parser.parse_args()
    pythons = interpreters.find(options.pythons)
    if not pythons:
        sys.exit("No Python to build for was found.")
    dist = options.output.resolve()
    dist.mkdir(parents=True, exist_ok=True)
    set_environment()

    BUILD.mkdir(parents=True, exist_ok=True)
    facts: dict[str, dict] = json.loads(FACTS.read_text()) if FACTS.exists() else {}
    for python in pythons:
        begun = time.monotonic()
        wheel = build_wheel(python, ROOT, dist, [f"--config-settings=build-dir={_shared_folder()}"])
        facts[python.tag] = {"wheel": wheel.name, "seconds": time.monotonic() - begun}
        FACTS.write_text(json.dumps(facts, indent=2) + "\n")
        say(wheel, begun)

    newest = pythons[-1]
    for name in BACKENDS:
        begun = time.monotonic()
        project = ROOT / "backends" / name
        gloo = _gloo() if name == "gloo" else None
        if name == "gloo" and gloo is None:
            print("The gloo backend is not built: there is no Gloo (libgloo-dev, or GLOO_ROOT)")
            continue
        arguments = [
            f"--config-settings=build-dir={BUILD / name}",
            f"--config-settings=cmake.define.HVD_INCLUDE_DIR={ROOT / 'hvd_core' / 'include'}",
            *([f"--config-settings=cmake.define.GLOO_ROOT={gloo}"] if gloo else []),
        ]
        say(build_wheel(newest, project, dist, arguments), begun)
    for name in PURE:
        begun = time.monotonic()
        say(build_wheel(newest, ROOT / "packages" / name, dist, []), begun)

    begun = time.monotonic()
    say(_sdist(newest, dist), begun)
    return 0


def set_environment() -> None:
    """Variables for the same bytes from the same sources, and the same commands for each Python."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", _time_of_last_commit())
    # Otherwise the compiler is called as it was for each Python's own build, and Ninja sees another command.
    os.environ.setdefault("CC", "cc")
    os.environ.setdefault("CXX", "c++")
    # Log lines name source files; where the checkout lies must not be in the wheel.
    for name in ("CFLAGS", "CXXFLAGS"):
        os.environ[name] = f"{os.environ.get(name, '')} -ffile-prefix-map={ROOT}/=".lstrip()


def build_wheel(python: Interpreter, project: Path, dist: Path, arguments: list[str]) -> Path:
    """Builds the project's wheel with this Python, repairs it where auditwheel is, and puts it into dist."""
    builder = builder_of(python, project)
    with tempfile.TemporaryDirectory() as scratch:
        words = ["wheel", "-q", "--no-build-isolation", "--no-deps", "-w", scratch, *arguments, str(project)]
        _run([*_pip(builder), *words])
        (built,) = Path(scratch).glob("*.whl")
        if not built.name.endswith("-any.whl") and _auditwheel():
            _run([*_auditwheel(), "repair", "-w", f"{scratch}/repaired", str(built)])
            (built,) = Path(scratch, "repaired").glob("*.whl")
        *names, platform = built.name.split("-")
        machine = re.sub(r".*linux(_\d+_\d+)?_", "*_", platform)
        for older in dist.glob("-".join([*names, machine])):  # for another C library
            older.unlink()
        target = Path(shutil.move(built, dist / built.name))
    if target.stat().st_size > MOST_BYTES:
        sys.exit(f"{target.name} has {target.stat().st_size} bytes, more than the limit of {MOST_BYTES}")
    return target


def _sdist(python: Interpreter, dist: Path) -> Path:
    """The source distribution of hvd-core."""
    builder = builder_of(python, ROOT)
    program = "import sys, scikit_build_core.build as build; print(build.build_sdist(sys.argv[1]))"
    name = _run([str(builder), "-c", program, str(dist)]).split()[-1]
    return dist / name


def builder_of(python: Interpreter, project: Path) -> Path:
    """The python of an environment with what the project's build requires. hvd-core is excepted: its headers are here."""
    folder = ROOT / "build" / "builders" / python.tag
    builder = folder / "bin" / "python"
    if not builder.exists():
        _run([python.path, "-m", "venv", "--without-pip", str(folder)])
    requires = tomllib.loads((project / "pyproject.toml").read_text())["build-system"]["requires"]
    requires = [requirement for requirement in requires if not requirement.startswith("hvd-core")]
    installed = folder / f"installed-{project.name}.txt"
    if not installed.exists() or installed.read_text().split("\n") != requires:
        _run([*_pip(builder), "install", "-q", *requires])
        installed.write_text("\n".join(requires))
    return builder


def _pip(python: Path) -> list[str]:
    """This environment's pip, working on another one."""
    return [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]


def _shared_folder() -> Path:
    """The build folder of hvd-core, without what CMake and scikit-build-core remember of another Python. The objects
    stay, and Ninja compiles those again whose commands have changed."""
    for name in ("CMakeCache.txt", ".skbuild-info.json"):
        (BUILD / "hvd_core" / name).unlink(missing_ok=True)
    return BUILD / "hvd_core"


def _gloo() -> str | None:
    """The folder with Gloo's include/ and lib/, "" for the system's. Gloo goes into the wheel, which takes auditwheel."""
    if not _auditwheel():
        return None
    get = [sys.executable, str(ROOT / "backends" / "gloo" / "get_gloo.py"), str(ROOT / "build" / "gloo")]
    answer = subprocess.run(get, capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else None


def _auditwheel() -> list[str] | None:
    try:
        import auditwheel  # noqa: F401
    except ModuleNotFoundError:
        return None
    return [sys.executable, "-m", "auditwheel"] if shutil.which("patchelf") else None


def _time_of_last_commit() -> str:
    git = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True
    )
    return git.stdout.strip() or "1577836800"


def _run(command: list[str]) -> str:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    if result.returncode != 0:
        sys.exit(f"{result.stdout}\n{' '.join(command)} failed with exit status {result.returncode}")
    return result.stdout


def say(path: Path, begun: float) -> None:
    print(f"{time.monotonic() - begun:5.0f} s  {path.stat().st_size / 1e6:5.2f} MB  {path.name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
