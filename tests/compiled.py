"""Compiles C and C++ for the tests, once: the result is kept in build/compiled, under a key of everything that went into
it, so that other tests, pytest's other processes and later sessions find it. `make test` fills the folder while it sets
up (build_programs.py).

The key covers the words of the command, the sources, and every header of the folders that are searched. A result is
renamed into its place when it is whole, so two processes that make the same one do not disturb each other.
"""

import collections
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "build" / "compiled"
_HEADERS = (".h", ".hpp", ".inc")
_locks = collections.defaultdict(threading.Lock)


def cxx() -> str:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "c++"


def cc() -> str:
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or "cc"


def compiled(
    name: str,
    command: Sequence[str],
    sources: Sequence[Path],
    include: Sequence[Path] = (),
    after: Sequence[str | Path] = (),
) -> Path:
    """The file `name`, made by `command sources -I... after -o FILE`.

    include: folders that are searched for headers; headers beside a source count as well.
    after: further words; those that are files count with their contents.
    Raises AssertionError with the compiler's words if it fails.
    """
    key = hashlib.sha256()
    for word in (name, _version(command[0]), *command):
        key.update(str(word).encode() + b"\0")
    for path in sources:
        key.update(Path(path).read_bytes())
    for folder in (*include, *dict.fromkeys(Path(path).parent for path in sources)):
        key.update(_headers_in(Path(folder)))
    for word in after:
        key.update(Path(word).read_bytes() if Path(word).is_file() else str(word).encode())
    target = STORE / key.hexdigest()[:24] / name
    with _locks[target]:  # threads of build_programs.py may want the same object file
        if not target.exists():
            _make(target, command, sources, include, after)
    return target


def _make(target, command, sources, include, after):
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    words = [*command, *sources, *(f"-I{folder}" for folder in include), *after, "-o", partial]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}\n{done.stderr[-4000:]}"
    partial.rename(target)


@functools.cache
def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60)
    return done.stdout.partition("\n")[0]


@functools.cache
def _headers_in(folder: Path) -> bytes:
    """A digest of the headers of a folder and the folders in it, at the first call of this process."""
    key = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in _HEADERS):
        key.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return key.digest()


@functools.cache
def cmake_library(source: Path, name: str) -> Path:
    """The library `name` of a CMake project, in build/FOLDER-OF-THE-PROJECT, up to date."""
    folder = ROOT / "build" / name.removeprefix("lib").removesuffix(".so")
    steps = [["cmake", "--build", folder, "-j2"]]
    cache = folder / "CMakeCache.txt"
    if not cache.exists() or f"CMAKE_HOME_DIRECTORY:INTERNAL={source}\n" not in cache.read_text():
        steps.insert(0, ["cmake", "--fresh", "-S", source, "-B", folder, "-DCMAKE_BUILD_TYPE=Release"])
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other lanes use the library too
        for command in steps:
            done = subprocess.run(
                [str(word) for word in command], capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, done.stdout + done.stderr
    return folder / name
