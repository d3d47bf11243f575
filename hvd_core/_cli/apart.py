"""Runs a plugin's code in a process of its own, with a time limit for each phase, for the commands that examine backends.

A plugin may exit, crash, hang or print in each of its phases. The command survives it, and tells which plugin did what in
which phase. Values come back as JSON, one when each phase is finished, so the finished ones are not lost.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hvd_core.backends import _phases
from hvd_core.backends._messages import of_exception
from hvd_core.backends._selection.usable import ending, limits

__all__ = ["Apart", "limits", "run_apart"]

_OWN_WORK_S = 120.0  # between phases, where hvd-core's own code runs
_KEPT = 64 << 10  # bytes of the output
_READS = 64  # of a file in one turn: a plugin that prints endlessly must not keep the command from its limits
_LONGEST_REPORT = 16 << 20
_SHOWN = 8  # lines of the output that a fault shows
_PR_SET_PDEATHSIG = 1


@dataclass
class Apart:
    """The result. ``values``: what the work has sent, in order. ``fault``: how the process ended before the work was
    done; "" if it was done. ``backend`` and ``phase``: what ran then; "" between phases. ``output``: the last lines that
    the process wrote to its standard output and standard error."""

    values: list[Any] = field(default_factory=list)
    fault: str = ""
    backend: str = ""
    phase: str = ""
    output: list[str] = field(default_factory=list)

    def text(self) -> str:
        """``its process ended with SIGSEGV in the phase load``."""
        return f"{self.fault} in the phase {self.phase}" if self.phase else self.fault

    def written(self) -> list[str]:
        """Lines that show the end of the output."""
        return [f"it wrote: {line}" for line in self.output[-_SHOWN:]]

    def relay(self) -> None:
        """Write the output to standard error."""
        for line in self.output:
            print(line, file=sys.stderr)


def run_apart(work: Callable[[Callable[[Any], None]], None], limits_s: Mapping[str, float]) -> Apart:
    """Run ``work(send)`` in a fork of this process. ``send(value)`` hands a JSON value to the caller. The process and all
    that it has started are ended when the work is done, when it fails, or when a phase exceeds its limit.

    Must be called on the only thread of this process, before it has imported a plugin.
    """
    reports, told = os.pipe()
    outputs, written = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    caller = os.getpid()
    child = os.fork()
    if child == 0:
        _child(work, told, written, caller)
    os.close(told)
    os.close(written)
    try:
        return _Watch(child, reports, outputs, limits_s).result()
    finally:
        for signalled in (os.kill, os.killpg):  # the group may not have been made yet
            with suppress(ProcessLookupError, PermissionError):
                signalled(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        os.close(reports)
        os.close(outputs)


class _Watch:
    """Follows one process to its end."""

    def __init__(self, child: int, reports: int, outputs: int, limits_s: Mapping[str, float]) -> None:
        self._child, self._files, self._limits = child, {reports: bytearray(), outputs: bytearray()}, limits_s
        self._reports, self._outputs, self._open = reports, outputs, {reports, outputs}
        self._found, self._done, self._limit = Apart(), False, _OWN_WORK_S
        self._until = time.monotonic() + self._limit
        for file in self._files:
            os.set_blocking(file, False)

    def result(self) -> Apart:
        found = self._found
        while not found.fault and not self._done:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            self._read(0.0 if ended else 0.05)
            if found.fault:
                break  # the process has told its exception, perhaps just before its end
            if ended and not self._done:
                found.fault = ending(os.waitstatus_to_exitcode(status))
            elif not self._done and time.monotonic() > self._until:
                found.fault = f"its process has not come back within {self._limit:g} s"
        self._read(0.0)
        found.output = bytes(self._files[self._outputs]).decode(errors="replace").splitlines()
        return found

    def _read(self, seconds: float) -> None:
        """Read all that is there, after at most ``seconds`` seconds."""
        if self._open:
            select.select(self._open, [], [], seconds)
        else:
            time.sleep(seconds)  # the plugin has closed the files of its process, which still runs
        for file in list(self._open):
            with suppress(BlockingIOError):
                for _ in range(_READS):
                    chunk = os.read(file, 1 << 16)
                    if not chunk:
                        self._open.remove(file)
                        break
                    self._files[file] += chunk
                    del self._files[file][: -(_KEPT if file == self._outputs else _LONGEST_REPORT)]
        *lines, rest = bytes(self._files[self._reports]).split(b"\n")
        self._files[self._reports] = bytearray(rest)
        for line in lines:
            with suppress(ValueError):  # the plugin has written to a file that is not its own
                self._take(json.loads(line))

    def _take(self, report: dict[str, Any]) -> None:
        if "value" in report:
            self._found.values.append(report["value"])
        elif "raised" in report:
            self._found.fault = report["raised"]
            self._found.backend, self._found.phase = report["in"] or ("", "")
        elif "running" in report:
            self._found.backend, self._found.phase = report["running"] or ("", "")
            self._limit = self._limits.get(self._found.phase, _OWN_WORK_S)
            self._until = time.monotonic() + self._limit
        else:
            self._done = True


def _child(work: Callable[[Callable[[Any], None]], None], told: int, written: int, caller: int) -> None:
    """The life of the process. Exit handlers are not run: a plugin's may crash or hang too."""

    def tell(report: dict[str, Any]) -> None:
        data = json.dumps(report, default=str).encode() + b"\n"
        while data:
            data = data[os.write(told, data) :]

    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != caller:
            os._exit(1)  # the caller died before the line above took effect
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # where it is on, it would write the command's own stack
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(written, 1)
        os.dup2(written, 2)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (open until the end of this process)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        _phases.listen(lambda now: tell({"running": now}))
        work(lambda value: tell({"value": value}))
        tell({"done": True})
    except BaseException as error:
        traceback.print_exc()
        with suppress(OSError):
            tell({"raised": f"it raised {of_exception(error)}", "in": _phases.left_by(error)})
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)
