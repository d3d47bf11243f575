"""Builds the engine, its backends and the native drivers of this folder under a sanitizer, and runs the drivers.

    python tests/hvd_core/engine/native/stress/sanitize.py [thread] [address] [--seconds 60] [--seed 1]

What `make sanitize` runs, and tests/hvd_core/engine/test_engine_sanitizers.py. Results of the build stay in build/sanitize-KIND. Exits
with 1 after a finding, which is printed with the seed that brings it back.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[4]
# "address" has the undefined-behaviour sanitizer with it.
KINDS = {"thread": "thread", "address": "address,undefined"}
OPTIONS = {
    "TSAN_OPTIONS": f"halt_on_error=1 second_deadlock_stack=1 suppressions={HERE / 'tsan_suppressions.txt'}",
    "ASAN_OPTIONS": "detect_leaks=1 detect_stack_use_after_return=1 allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
WAYS = ("shm", "tcp", "both")


def build(kind: str) -> Path:
    """The folder with the programs and the backends' libraries. Raises CalledProcessError."""
    folder = ROOT / "build" / f"sanitize-{kind}"
    configure = ["cmake", "-S", HERE, "-B", folder, f"-DHVD_SANITIZE={KINDS[kind]}"]
    if not (folder / "CMakeCache.txt").exists():
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        if shutil.which("ccache"):
            configure += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    jobs = str(min(4, len(os.sched_getaffinity(0))))
    for step in (configure, ["cmake", "--build", folder, "-j", jobs]):
        done = subprocess.run(
            list(map(str, step)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            sys.stderr.write(done.stdout[-8000:])
            done.check_returncode()
    return folder


def commands(folder: Path, seconds: float, seed: int) -> list[list[str]]:
    """The commands to run; they take about `seconds` in all."""
    stress = seconds * 0.6 / len(WAYS)
    # A wrong rank writes where and when it likes: only accesses beyond a buffer count.
    hostile = [[str(folder / "hostile_fuzz"), "--seconds", f"{seconds * 0.12:g}", "--seed", str(seed)]]
    if folder.name != "sanitize-address":
        hostile = []
    return [
        [str(folder / "threads_kept")],
        [str(folder / "device_stress"), "--seconds", f"{seconds * 0.15:g}", "--seed", str(seed)],
        [str(folder / "frontend_stress"), "--seconds", f"{seconds * 0.1:g}", "--seed", str(seed)],
        [str(folder / "wire_fuzz"), "--seconds", f"{seconds * 0.06:g}", "--seed", str(seed)],
        *hostile,
        [str(folder / "format_fuzz"), "--rounds", f"{seconds * 30:.0f}", "--seed", str(seed)],
        *(
            [str(folder / "engine_stress"), "--seconds", f"{stress:g}", "--seed", str(seed), "--ways", ways]
            for ways in WAYS
        ),
    ]


def run(command: list[str], patience: float) -> tuple[bool, str]:
    """(whether it passed, what it printed)."""
    environment = {**os.environ}
    for name, value in OPTIONS.items():
        environment[name] = f"{value} {environment.get(name, '')}".strip()
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=patience,
        )
    except subprocess.TimeoutExpired as late:
        return False, f"not finished after {patience:g} s\n{late.stdout or ''}"
    return done.returncode == 0 and "passed" in done.stdout, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"any of {', '.join(KINDS)}; default: all")
    parser.add_argument("--seconds", type=float, default=60, help="run for about so long under each (60)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    arguments = parser.parse_args()
    for kind in arguments.kinds or KINDS:
        if kind not in KINDS:
            parser.error(f"{kind!r} is none of {', '.join(KINDS)}")
        print(f"{KINDS[kind]}: building", flush=True)
        try:
            folder = build(kind)
        except subprocess.CalledProcessError as failed:
            print(f"{KINDS[kind]}: {failed}", file=sys.stderr)
            return 1
        for command in commands(folder, arguments.seconds, arguments.seed):
            began = time.monotonic()
            passed, output = run(command, arguments.seconds + 300)
            name = " ".join([Path(command[0]).name, *command[1:]])
            print(
                f"{KINDS[kind]}: {name}: {time.monotonic() - began:.0f} s: {output.strip()[-12000:]}",
                flush=True,
            )
            if not passed:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
