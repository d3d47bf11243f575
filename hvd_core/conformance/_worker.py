"""The processes that the session starts: ``python -m hvd_core.conformance._worker``.

It reads lines of JSON from its standard input: first the configuration, then the name of a case on each line. It writes a
Result for each case to its standard output; what the backend prints goes to standard error. The session may kill the
process at any time.

A rank opens the backend once, and runs cases together with the other ranks. A process without ranks runs the cases that
need none, so that a crash, or a side effect of loading, stays there.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
from typing import Any, TextIO

from hvd_core._bootstrap.store import StoreClient
from hvd_core.conformance._backend import Backend, BackendFailure, Calls, watch
from hvd_core.conformance._cases import Kit, all_cases
from hvd_core.conformance._session import Target, resolve
from hvd_core.conformance._verdicts import (
    EMULATED,
    FAIL,
    PASS,
    SKIPPED,
    CaseArgument,
    Composed,
    Failed,
    Result,
    Row,
    Skip,
)


class Worker:
    """One process that runs cases: a rank, or one without ranks.

    Args:
        config: the target, this process's place (rank, size, hosts) if it is a rank, and the options of the kit.
        store: a rank's open connection to the job's store.
        calls: the calls into the backend, for ``watch()``.

    Raises:
        The exceptions of Backend if the backend of a rank does not open.
    """

    def __init__(self, config: dict[str, Any], store: Any, calls: Calls | None = None) -> None:
        self.cases = {c.name: c for c in all_cases(config.get("modules", ()))}
        self.case = ""
        self._argument: Kit | Bare
        if store is None:
            target = Target(config["name"], config["path"], config["origin"], config["python"])
            self._argument = Bare(resolve(config["name"]) if config["described"] else target, calls)
        else:
            path = python_backend(config["python"]) if config["python"] else config["path"]
            self._argument = Kit(config, Backend(config["name"], path, store, calls), store)

    def run(self, name: str, serial: int) -> Result:
        """Run a case. Never raises; the result holds the failure."""
        argument, result, started = self._argument, Result(name, PASS), time.monotonic()
        self.case = name
        argument.begin(name, serial)
        try:
            self.cases[name].run(argument)
            argument.end()
        except Exception as problem:
            _fail(result, problem)
        if result.verdict in (EMULATED, SKIPPED):
            try:
                argument.end()
            except BackendFailure as problem:
                _fail(result, problem)
        result.rows, result.seconds = argument.rows, time.monotonic() - started
        return result


class Bare(CaseArgument):
    """The argument of a case without ranks: the target, and the backend, which is loaded at the first use."""

    def __init__(self, target: Target, calls: Calls | None = None) -> None:
        self.target, self._calls = target, calls
        self.rows: list[Row] = []
        self._backend: Backend | None = None

    def begin(self, case_name: str, serial: int) -> None:
        self.rows = []

    def end(self) -> None:
        """There is nothing to destroy."""

    @property
    def backend(self) -> Backend:
        """The backend, loaded at the first use. Raises Failed if it does not load."""
        if self._backend is None:
            path = python_backend(self.target.python) if self.target.python else self.target.path
            try:
                self._backend = Backend(self.target.name, path, calls=self._calls)
            except (OSError, AttributeError, BackendFailure) as problem:
                raise Failed(f"does not load: {problem}") from problem
        return self._backend


def _fail(result: Result, problem: Exception) -> None:
    """Make the exception that a case has raised the verdict."""
    if isinstance(problem, Composed):
        result.verdict, result.text = EMULATED, str(problem)
    elif isinstance(problem, Skip):
        result.verdict, result.text = SKIPPED, str(problem)
    elif isinstance(problem, (Failed, BackendFailure)):
        result.verdict, result.text = FAIL, str(problem)
    else:
        frame = traceback.extract_tb(problem.__traceback__)[-1]
        place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        result.verdict, result.text = FAIL, f"{type(problem).__name__}: {problem} ({place})"
        traceback.print_exc()


def python_backend(place: str) -> str:
    """The string that replaces a library's path, for the class at "module:Class"."""
    from hvd_core.backends.python_backend import entry_of

    module, _, attribute = place.partition(":")
    return entry_of(getattr(importlib.import_module(module), attribute)).path


def main() -> None:
    """Entry of ``python -m``."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    config = json.loads(sys.stdin.readline())
    sys.path += [place for place in config["search"] if place not in sys.path]
    _serve(config, answers)
    # Exit handlers of a backend are not run, because the process must not hang in them.
    sys.stderr.flush()
    os._exit(0)


def _serve(config: dict[str, Any], answers: TextIO) -> None:
    # So that the session can find out where this process hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    worker, calls = None, Calls()

    def write(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    def stuck(words: str) -> None:
        # The session takes the first line, so it does not matter if the call comes back meanwhile.
        write({"broken": words} if worker is None else Result(worker.case, FAIL, words).as_dict())
        os._exit(1)

    try:
        secret = bytes.fromhex(config.get("secret", ""))
        store = StoreClient(config["store"], secret) if "store" in config else None
        watch(calls, config["patience"], stuck)
        worker = Worker(config, store, calls)
    except BaseException as problem:
        write({"broken": f"{type(problem).__name__}: {problem}"})
        traceback.print_exc()
        os._exit(1)
    write({"ready": os.getpid()})
    for line in sys.stdin:
        order = json.loads(line)
        write(worker.run(order["case"], order["serial"]).as_dict())


if __name__ == "__main__":
    main()
