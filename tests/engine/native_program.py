"""Compiles a C++ program of tests/engine/native with the parts of the engine that it stands on.

Object files are kept in build/native, by the compiler's flags, and made again when a source or a header is newer.
"""

import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hvd_core"
NATIVE = Path(__file__).with_name("native")
PLUGIN = sorted(str(p.relative_to(PACKAGE / "engine")) for p in (PACKAGE / "engine" / "plugin").glob("*.cc"))
# What every transport stands on.
COMMON = [*(f"data/{p}.cc" for p in ("abilities", "aligned", "direct", "host_math", "parts", "program"))]
COMMON += ["control/signature.cc", "observe/log.cc"]


def build(name: str, engine: list[str], flags: list[str] | None = None) -> Path:
    """The program native/NAME.cc, linked with COMMON, the plugin layer and `engine`: sources such as "data/layout.cc"."""
    flags = flags or ["-O1", "-g1"]
    folder = ROOT / "build" / "native" / hashlib.sha256(" ".join(flags).encode()).hexdigest()[:8]
    folder.mkdir(parents=True, exist_ok=True)
    parts = dict.fromkeys([*PLUGIN, *COMMON, *engine])
    sources = [NATIVE / f"{name}.cc", *(PACKAGE / "engine" / s for s in parts)]
    headers = [p for folder in (PACKAGE, NATIVE) for p in folder.rglob("*")]
    newest_header = max(p.stat().st_mtime for p in headers if p.suffix in (".h", ".inc", ".hpp"))
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda s: _object(s, folder, flags, newest_header), sources))
    program = folder / name
    _run([_cxx(), *flags, *objects, "-ldl", "-pthread", "-o", program])
    return program


def backend(source: Path, flags: list[str] | None = None) -> Path:
    """A test backend of one source, as a plugin's author would build it."""
    flags = flags or ["-O1", "-g1"]
    folder = ROOT / "build" / "native" / hashlib.sha256(" ".join(flags).encode()).hexdigest()[:8]
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"libhvd_backend_{source.stem}.so"
    headers = (PACKAGE / "include" / "hvd").iterdir()
    if out.exists() and out.stat().st_mtime > max(p.stat().st_mtime for p in (source, *headers)):
        return out
    partial = out.with_suffix(f".{os.getpid()}.so")
    style = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    _run([_cxx(), *style, *flags, f"-I{PACKAGE / 'include'}", "-pthread", source, "-o", partial])
    partial.rename(out)
    return out


def shm_library() -> Path:
    """The shm backend's library, as the engine finds it."""
    from hvd_core.backends.registry import installed

    return next(b for b in installed() if b.name == "shm").path()


def _cxx() -> str:
    return os.environ.get("CXX") or shutil.which("g++") or "c++"


def _object(source: Path, folder: Path, flags: list[str], newest_header: float) -> Path:
    out = folder / f"{source.parent.name}-{source.stem}.o"
    if out.exists() and out.stat().st_mtime > max(source.stat().st_mtime, newest_header):
        return out
    cache = [shutil.which("ccache")] if shutil.which("ccache") else []
    warnings = ["-std=c++20", "-Wall", "-Wextra", "-Werror"]
    includes = [f"-I{PACKAGE}", f"-I{PACKAGE / 'include'}"]
    partial = out.with_suffix(f".{os.getpid()}.o")
    _run([*cache, _cxx(), *warnings, *flags, *includes, "-pthread", "-c", source, "-o", partial])
    partial.rename(out)
    return out


def _run(command: list) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr[-4000:]}"
