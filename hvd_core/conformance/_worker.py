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
from hvd_core.conformance import _session
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
    """One rank.

    Args:
        config: the target (name, path, python), this process's place (rank, size, hosts), and the options of the kit.
        store: an open connection to the job's store.
        calls: the calls into the backend, for ``watch()``.

    Raises:
        The exceptions of Backend if the backend does not open.
    """

    def __init__(self, config: dict[str, Any], store: Any, calls: Calls | None = None) -> None:
        self.cases = {c.name: c for c in all_cases(config.get("modules", ()))}
        path = python_backend(config["python"]) if config["python"] else config["path"]
        self.kit = Kit(config, Backend(config["name"], path, store, calls), store)
        self.case = ""

    def run(self, name: str, serial: int) -> Result:
        """Run a case. Never raises; the result holds the failure."""
        kit, result, started = self.kit, Result(name, PASS), time.monotonic()
        self.case = name
        kit.begin(name, serial)
        try:
            self.cases[name].run(kit)
            kit.end()
        except Exception as problem:
            _fail(result, problem)
        if result.verdict in (EMULATED, SKIPPED):
            try:
                kit.end()
            except BackendFailure as problem:
                _fail(result, problem)
        result.rows, result.seconds = kit.rows, time.monotonic() - started
        return result


class Bare(CaseArgument):
    """The argument of a case without ranks: the target, and the backend, which is loaded at the first use."""

    def __init__(self, target: Target, calls: Calls | None = None) -> None:
        self.target = target
        self.rows: list[Row] = []
        self._backend: Backend | None = None
        self._calls = calls

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
    if "store" in config:
        _serve_as_rank(config, answers)
    else:
        _serve_without_ranks(config, answers)
    # Exit handlers of a backend are not run, because the process must not hang in them.
    sys.stderr.flush()
    os._exit(0)


def _serve_as_rank(config: dict[str, Any], answers: TextIO) -> None:
    # So that the session can find out where this rank hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    worker, calls = None, Calls()

    def stuck(words: str) -> None:
        # The session takes the first line, so it does not matter if the call comes back meanwhile.
        _write(answers, {"broken": words} if worker is None else Result(worker.case, FAIL, words).as_dict())
        os._exit(1)

    try:
        store = StoreClient(config["store"], bytes.fromhex(config["secret"]))
        watch(calls, config.get("patience", 1.0), stuck)
        worker = Worker(config, store, calls)
    except BaseException as problem:
        _write(answers, {"broken": f"{type(problem).__name__}: {problem}"})
        traceback.print_exc()
        os._exit(1)
    _write(answers, {"ready": os.getpid()})
    for line in sys.stdin:
        order = json.loads(line)
        _write(answers, worker.run(order["case"], order["serial"]).as_dict())


def _serve_without_ranks(config: dict[str, Any], answers: TextIO) -> None:
    _session.INTERPRETER[:] = config["interpreter"]
    cases = {case.name: case for case in all_cases(config["modules"])}
    target = Target(config["name"], config["path"], config["origin"], config["python"])
    if config["described"]:
        target = resolve(config["name"])
    calls, name = Calls(), ""
    bare = Bare(target, calls)

    def stuck(words: str) -> None:
        _write(answers, Result(name, FAIL, words).as_dict())
        os._exit(1)

    watch(calls, config["patience"], stuck)
    for line in sys.stdin:
        name, bare.rows = json.loads(line)["case"], []
        result, started = Result(name, PASS), time.monotonic()
        try:
            cases[name].run(bare)
        except Exception as problem:
            _fail(result, problem)
        result.rows, result.seconds = bare.rows, time.monotonic() - started
        _write(answers, result.as_dict())


def _write(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
