"""Builds what the tests compile, side by side on all cores, so that `make test` does it while it sets up and not while
it tests. A test whose program is not there builds it itself; see compiled.py. The tests themselves are compiled too:
pytest keeps them with its own form of `assert`, which each lane of a first run would make for itself.

    python tests/build_programs.py
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent
for folder in ("", "abi", "hvd_core/conformance", "hvd_core/engine", "backends/nccl"):
    sys.path.insert(0, str(TESTS / folder))

import abi_toolchain  # noqa: E402
import format_fuzz  # noqa: E402
import host_kernels  # noqa: E402
import hostile_fuzz  # noqa: E402
import kit_libraries  # noqa: E402
import native_program  # noqa: E402
import simulated_cuda  # noqa: E402


def jobs():
    """Functions that each build one thing, the longest first."""
    yield lambda: subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=TESTS.parent,
    )
    toolchain = abi_toolchain.Toolchain()
    yield from (lambda n=name: native_program.build(n) for name in native_program.PROGRAMS)
    yield format_fuzz.build
    yield hostile_fuzz.build
    yield host_kernels.build
    yield simulated_cuda.build
    yield from (
        lambda s=source: native_program.backend(s) for source in (TESTS / "backends/host").glob("*/*.cc")
    )
    yield from (lambda s=source: toolchain.program(s) for source in (TESTS / "abi").glob("*_driver.cc"))
    yield lambda: abi_toolchain.loopbacks(toolchain)
    yield lambda: abi_toolchain.loaded_loopback(toolchain)
    yield from (lambda f=flavour: abi_toolchain.arithmetic(f) for flavour in abi_toolchain.ARITHMETIC)
    yield lambda: _with_newer_headers(abi_toolchain.matrix_hosts, toolchain)
    yield lambda: _with_newer_headers(abi_toolchain.matrix_plugins, toolchain)
    yield from (kit_libraries.shim, kit_libraries.fake_sync, kit_libraries.minimal)


def _with_newer_headers(build, toolchain):
    with tempfile.TemporaryDirectory() as folder:
        build(toolchain, abi_toolchain.newer_headers(Path(folder, "include")))


def main():
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failures = [e for e in pool.map(_failure, jobs()) if e]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _failure(job):
    try:
        job()
    except Exception as error:
        return error
    return None


if __name__ == "__main__":
    sys.exit(main())
