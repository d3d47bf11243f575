"""One rank: opens the backend once and runs the requested cases in sequence.

``python -m hvd_core.conformance.worker`` reads lines of JSON from its standard input (the first one is the
configuration, then {"case": ..., "serial": ...}) and writes a Result for each to its standard output. What the backend
prints goes to standard error. The session may kill it at any time.
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
from typing import Any

from hvd_core.conformance.call_watch import Calls, watch
from hvd_core.conformance.verdicts import EMULATED, FAIL, PASS, SKIPPED, Composed, Failed, Result, Skip


class Worker:
    """``store``: an open connection. Raises the exceptions of Backend if the backend does not open."""

    def __init__(self, config: dict, store: Any, calls: Calls | None = None) -> None:
        from hvd_core.conformance.backend import Backend
        from hvd_core.conformance.cases import Kit, all_cases

        self.cases = {c.name: c for c in all_cases(config.get("modules", ()))}
        path = config["path"]
        if config.get("python"):
            path = python_backend(config["python"])
        self.kit = Kit(config, Backend(config["name"], path, store, calls), store)
        self.case = ""

    def run(self, name: str, serial: int) -> Result:
        """Runs a case. Never raises; the result holds the failure."""
        from hvd_core.conformance.backend import BackendFailure

        kit, result, started = self.kit, Result(name, PASS), time.monotonic()
        self.case = name
        kit.begin(name, serial)
        try:
            self.cases[name].run(kit)
            kit.end()
        except Composed as composed:
            result.verdict, result.text = EMULATED, str(composed)
        except Skip as skipped:
            result.verdict, result.text = SKIPPED, str(skipped)
        except (Failed, BackendFailure) as problem:
            result.verdict, result.text = FAIL, str(problem)
        except Exception as problem:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            result.verdict, result.text = FAIL, f"{type(problem).__name__}: {problem} ({place})"
            traceback.print_exc()
        if result.verdict in (EMULATED, SKIPPED):
            try:
                kit.end()
            except BackendFailure as problem:
                result.verdict, result.text = FAIL, str(problem)
        result.rows, result.seconds = kit.rows, time.monotonic() - started
        return result


def python_backend(place: str) -> str:
    """The text that replaces a library's path, for the class at "module:Class"."""
    from hvd_core.backends.python_backend import entry_of

    module, _, attribute = place.partition(":")
    return entry_of(getattr(importlib.import_module(module), attribute)).path


def main() -> None:
    """Entry of ``python -m``."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # So that the session can find out where this rank hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    config = json.loads(sys.stdin.readline())
    sys.path += [place for place in config["search"] if place not in sys.path]
    worker, calls = None, Calls()

    def stuck(words: str) -> None:
        # The session takes the first line, so it does not matter if the call comes back meanwhile.
        answer = Result(worker.case, FAIL, words).as_dict() if worker is not None else {"broken": words}
        answers.write(json.dumps(answer) + "\n")
        os._exit(1)

    try:
        from hvd_core._bootstrap import StoreClient

        store = StoreClient(config["store"], bytes.fromhex(config["secret"]))
        watch(calls, config.get("patience", 1.0), stuck)
        worker = Worker(config, store, calls)
    except BaseException as problem:
        answers.write(json.dumps({"broken": f"{type(problem).__name__}: {problem}"}) + "\n")
        traceback.print_exc()
        os._exit(1)
    answers.write(json.dumps({"ready": os.getpid()}) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        answers.write(json.dumps(worker.run(order["case"], order["serial"]).as_dict()) + "\n")
    # Exit handlers of a backend are not run, because the rank must not hang in them.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
