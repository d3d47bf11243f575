"""Compiles a C++ program of tests/engine/native with the parts of the engine that it stands on.

Without flags of its own a program takes the engine's library as it was built, where nothing of it is newer. Otherwise
object files are kept in build/native, by the compiler's flags, and made again when a source or a header is newer.
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
    library = None if flags else _engine_library()
    flags = flags or ["-O1", "-g1"]
    folder = ROOT / "build" / "native" / hashlib.sha256(" ".join(flags).encode()).hexdigest()[:8]
    folder.mkdir(parents=True, exist_ok=True)
    parts = () if library else dict.fromkeys([*PLUGIN, *COMMON, *engine])
    sources = [NATIVE / f"{name}.cc", *(PACKAGE / "engine" / s for s in parts)]
    headers = [p for folder in (PACKAGE, NATIVE) for p in folder.rglob("*")]
    newest_header = max(p.stat().st_mtime for p in headers if p.suffix in (".h", ".inc", ".hpp"))
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda s: _object(s, folder, flags, newest_header), sources))
    program = folder / name
    partial = program.with_suffix(f".{os.getpid()}")
    _run([_cxx(), *flags, *objects, *filter(None, [library]), "-ldl", "-pthread", "-o", partial])
    partial.rename(program)
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
    from hvd_core.backends.discovery import installed

    return next(b for b in installed() if b.name == "shm").path()


def _engine_library() -> Path | None:
    """The engine as the build of the checkout left it, if that was after the last change to its sources."""
    libraries = (ROOT / "build").glob("*/libhvd_engine.a")
    built = [(p.stat().st_mtime, p) for p in libraries if "sanitize" not in p.parent.name]
    if not built:
        return None
    when, library = max(built)
    sources = (p for p in PACKAGE.rglob("*") if p.suffix in (".cc", ".h", ".inc", ".hpp"))
    return library if when > max(p.stat().st_mtime for p in sources) else None


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
