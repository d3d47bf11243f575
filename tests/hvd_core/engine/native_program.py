"""Compiles a C++ program of tests/hvd_core/engine/native with the parts of the engine that it stands on, and test backends.

Without flags of its own a program takes the engine's library as it was built, where no source of it is newer. Otherwise
the parts are compiled with the flags. Everything is kept; see compiled.py.
"""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compiled import ROOT, compiled, cxx

PACKAGE = ROOT / "hvd_core"
NATIVE = Path(__file__).with_name("native")
PLUGINS = sorted(
    str(p.relative_to(PACKAGE / "engine")) for p in (PACKAGE / "engine" / "plugins").glob("*.cc")
)


def parts(folder: str, *names: str) -> list[str]:
    return [f"{folder}/{name}.cc" for name in names]


# What every lowering needs.
COMMON = [
    *parts("base", "log", "rank_list", "text"),
    *parts("recorder", "event_ring", "observer", "timeline", "timeline_format"),
    *parts("agreement", "signature"),
    *parts("dataplane", "abilities", "direct", "host_math", "packing", "parts", "schedule"),
]
# The further parts of the engine that each program needs.
_EMULATED = parts("dataplane", "composition", "emulated")
_AGREEMENT = parts(
    "agreement", "autotune", "coordinator", "fusion", "messages", "participant", "weights_check"
)
PROGRAMS = {
    "adasum_test": parts("dataplane", "adasum"),
    "control_test": _AGREEMENT,
    "autotune_test": _AGREEMENT,
    "stall_test": parts("watch", "snapshot", "stack_sampler", "stall_report"),
    "call_watch_test": parts("watch", "call_watch", "snapshot", "watch_thread"),
    "request_test": parts("calls", "request"),
    "lifecycle_test": parts("core", "lifecycle"),
    "observer_test": [],
    "emulated_test": _EMULATED,
    "staged_test": [*_EMULATED, *parts("dataplane", "staged")],
    "hierarchical_test": [*_EMULATED, *parts("dataplane", "hierarchical", "hierarchical_reduce", "layout")],
}
# For ranks that are threads: one that waits leaves its core to the others at once.
PATIENT = {"HOROVOD_BACKEND_SHM_SPIN_US": "0"}
PROGRAMS["schedule_test"] = PROGRAMS["hierarchical_test"]


def build(name: str, flags: list[str] | None = None) -> Path:
    """The program native/NAME.cc, one of PROGRAMS, linked with the engine or, with flags of its own, with its parts."""
    engine = PROGRAMS[name]
    library = None if flags else engine_library()
    flags = flags or ["-O2", "-g1"]
    own = [] if library else dict.fromkeys([*PLUGINS, *COMMON, *engine])
    sources = [NATIVE / f"{name}.cc", *(PACKAGE / "engine" / s for s in own)]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda source: object_of(source, flags), sources))
    linked = [*objects, *filter(None, [library])]
    return compiled(name, [cxx(), *flags], [], after=[*linked, "-ldl", "-pthread"])


def backend(source: Path, flags: list[str] | None = None) -> Path:
    """A test backend of one source, as a plugin's author would build it."""
    style = [
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-pthread",
    ]
    words = [cxx(), *style, *(flags or ["-O1", "-g1"])]
    # Test backends share headers in folders beside their own.
    include = [PACKAGE / "include", source.parents[1]]
    return compiled(f"libhvd_backend_{source.stem}.so", words, [source], include, ["-ldl"])


def shm_library() -> Path:
    """The shm backend's library, as the engine finds it."""
    from hvd_core.backends import installed

    return next(b for b in installed() if b.name == "shm").path()


def engine_library() -> Path | None:
    """The engine as the build of the checkout left it, if that was after the last change to its sources."""
    libraries = (ROOT / "build").glob("*/libhvd_engine.a")
    built = [(p.stat().st_mtime, p) for p in libraries if "sanitize" not in p.parent.name]
    if not built:
        return None
    when, library = max(built)
    sources = (p for p in PACKAGE.rglob("*") if p.suffix in (".cc", ".h", ".inc", ".hpp"))
    return library if when > max(p.stat().st_mtime for p in sources) else None


def object_of(source: Path, flags: list[str]) -> Path:
    """The object file of one source of the engine, or of a program here."""
    if any("thread" in flag for flag in flags if flag.startswith("-fsanitize=")):
        flags = ["-Wno-tsan", *flags]  # it knows no fences; the engine's order atomics, which it does know
    words = [cxx(), "-std=c++20", "-Wall", "-Wextra", "-Werror", *flags, "-pthread", "-c"]
    include = [PACKAGE, PACKAGE / "include", ROOT / "backends"]
    return compiled(f"{source.parent.name}-{source.stem}.o", words, [source], include)


def source_of(name):
    return (NATIVE / f"{name}.cc").read_text(encoding="utf-8")


def checks_of(name):
    """The checks that a program lists, in order, as its source has them."""
    return re.findall(r"^ +CHECK\((\w+)\),$", source_of(name), re.M)


def expect_check_passes(program, check):
    done = subprocess.run([program, check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def expect_all_checks_are_listed(program, name):
    """Each function of the program's source that is a check stands in its list."""
    listed = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True).stdout.split()
    written = re.findall(r"^void (\w+)\(\)", source_of(name), re.M)
    assert listed == checks_of(name) and sorted(written) == sorted(listed)
