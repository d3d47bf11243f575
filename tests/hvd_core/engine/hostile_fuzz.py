"""Links native/stress/hostile_fuzz.cc with the engine as it was built, and with the address sanitizer's memory functions, for
test_hostile_fuzz.py and build_programs.py. `make sanitize` compiles all of it with the sanitizers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import native_program
from compiled import compiled, cxx

FLAGS = ["-O1", "-g1", "-fvisibility=hidden"]
PARTS = ("hostile_fuzz", "hostile_relay", "spoiled_backend", "world", "plan", "buffers")


def build() -> Path | None:
    """The program; None if the engine's library is older than its sources."""
    library = native_program.engine_library()
    if library is None:
        return None
    sources = [native_program.NATIVE / "stress" / f"{part}.cc" for part in PARTS]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda source: native_program.object_of(source, FLAGS), sources))
    words = [cxx(), "-g1", "-fsanitize=address"]
    return compiled("hostile_fuzz", words, [], after=[*objects, library, "-ldl", "-pthread"])
