"""Tries a wheel's backend in a process of its own, before the automatic choice brings its code into this one.

The user has not named such a plugin, so it must not be able to end, hang or change the process: it is imported, probed
and loaded there first (trial_process.py). What it prints is not shown; ``hvd plugin doctor`` shows it. Called on the
thread that chooses.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hvd_core._config import read_environment
from hvd_core.backends import errors, phases
from hvd_core.backends.candidate import Candidate
from hvd_core.backends.discovery import backend_spec
from hvd_core.backends.errors import BackendError, BackendUnavailable

# Of the start timeout, because the other ranks wait for this one.
_SHARE = 0.5
_OWN_WORK_S = 60.0  # between phases: an interpreter starts, on a busy machine
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from hvd_core.backends.selection.trial_process import run; run(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))"
)
_passed: set[Candidate] = set()


def limits(probe_timeout_s: float) -> dict[str, float]:
    """Seconds that each phase may take, for ``[probe] timeout_s``. The probe has a limit of its own in its process, and
    this one is for a probe that stops its whole process."""
    return {
        phases.DESCRIBE: 2 * probe_timeout_s,
        phases.PROBE: probe_timeout_s + 5,
        phases.LOAD: 10 * probe_timeout_s,
    }


def ending(code: int) -> str:
    """How a process has ended, by its exit code, or the negative number of a signal."""
    if code >= 0:
        return f"its process exited with code {code}"
    try:
        return f"its process ended with {signal.Signals(-code).name}"
    except ValueError:
        return f"its process ended with signal {-code}"


def run(candidate: Candidate, probe_timeout_s: float, environ: Mapping[str, str]) -> None:
    """Try the backend, once in this process's life.

    Raises the BackendError of the phase that fails; BackendUnavailable if the process of the trial ends or is ended.
    """
    if candidate in _passed:
        return
    reports, written = os.pipe()
    env = {**environ, backend_spec.VARIABLE: backend_spec.encode([candidate])}
    words = [sys.executable or "python3", "-c", _PROGRAM, json.dumps(sys.path), candidate.name]
    words += [str(written), str(os.getpid())]
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    try:
        process = subprocess.Popen(words, env=env, pass_fds=[written], start_new_session=True, **quiet)
    except OSError as error:
        os.close(reports)
        raise BackendUnavailable(
            f"horovod: backend '{candidate.name}' cannot be tried: no process can be started: {error}"
        ) from error
    finally:
        os.close(written)
    try:
        fault = _followed(process, reports, limits(probe_timeout_s))
    finally:
        os.close(reports)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if fault:
        raise BackendUnavailable(
            f"horovod: backend '{candidate.name}' ({candidate.describe_origin()}) is not used: {fault}.\n"
            f"  check: hvd plugin doctor {candidate.name}"
        )
    _passed.add(candidate)


def _followed(process: subprocess.Popen, reports: int, limits_s: Mapping[str, float]) -> str:
    """How the process has failed to come to an end of its own; "" if it passed. Raises the error that it reports."""
    last = time.monotonic() + _SHARE * read_environment().start_timeout_s
    where, limit, begun, rest = "", _OWN_WORK_S, time.monotonic(), b""
    while True:
        now = time.monotonic()
        until = min(last, begun + limit)
        if now >= until:
            return f"its process has not come back within {until - begun:.1f} s{where}"
        if not select.select([reports], [], [], min(0.1, until - now))[0]:
            if process.poll() is None:
                continue
            return ending(process.returncode) + where  # another process holds the pipe
        data = os.read(reports, 1 << 16)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            report = _read(line)
            if "passed" in report:
                return ""
            if "error" in report:
                kind = getattr(errors, str(report["error"]), None)
                good = isinstance(kind, type) and issubclass(kind, BackendError)
                raise (kind if good else BackendUnavailable)(str(report.get("text", "")))
            if "running" in report:
                phase = report["running"]
                where = f" in the phase {phase}" if phase else ""
                limit, begun = limits_s.get(phase, _OWN_WORK_S), time.monotonic()
        if not data:
            with suppress(subprocess.TimeoutExpired):
                return ending(process.wait(max(0.0, until - time.monotonic()))) + where
            return f"its process has not come back within {until - begun:.1f} s{where}"


def _read(line: bytes) -> dict[str, Any]:
    """A report; {} for bytes of the plugin, which has written to a file that is not its own."""
    with suppress(ValueError):
        found = json.loads(line)
        return found if isinstance(found, dict) else {}
    return {}
