"""Cases that need no ranks: each runs in a fresh process, so that what loading does to a process can be seen.

``python -m hvd_core.conformance.alone`` reads one line of JSON from standard input and writes a Result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from hvd_core.conformance.verdicts import FAIL, PASS, SKIPPED, Failed, Result, Row, Skip


class Bare:
    """What such a case is given: the target, and the backend when it asks for it."""

    def __init__(self, target) -> None:
        self.target, self.rows, self._backend = target, [], None

    @property
    def backend(self):
        """Loaded at the first use; Failed when it cannot be."""
        from hvd_core.conformance.backend import Backend, BackendFailure
        from hvd_core.conformance.worker import python_backend

        if self._backend is None:
            path = python_backend(self.target.python) if self.target.python else self.target.path
            try:
                self._backend = Backend(self.target.name, path)
            except (OSError, AttributeError, BackendFailure) as problem:
                raise Failed(f"does not load: {problem}") from problem
        return self._backend

    def note(self, what: str, text: str) -> None:
        """A remark; never decides."""
        self.rows.append(Row(what, "NOTE", text))

    def row(self, what: str, verdict: str, text: str = "") -> None:
        """A line below the case."""
        self.rows.append(Row(what, verdict, text))

    @staticmethod
    def expect(condition: Any, text: str) -> None:
        """Raises Failed with the text when the condition is false."""
        if not condition:
            raise Failed(text)

    @staticmethod
    def skip(reason: str) -> None:
        """Ends the case as SKIPPED."""
        raise Skip(reason)


def run_alone(case, target, patience: float = 1.0) -> Result:
    """Runs a case without ranks in a process of its own."""
    order = {"case": case.name, "name": target.name, "path": target.path, "python": target.python}
    order["module"] = case.run.__module__
    order["origin"], order["described"] = target.origin, target.descriptor is not None
    limit = case.seconds * patience
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "hvd_core.conformance.alone"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        try:
            out, _ = process.communicate(json.dumps(order).encode() + b"\n", timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return Result(case.name, FAIL, f"did not come to an end within {limit:g} s", [], limit)
        if not out.strip():
            errors.seek(0)
            words = " | ".join(errors.read().decode(errors="replace").strip().splitlines()[-3:])
            return Result(case.name, FAIL, f"the process died with status {process.returncode}: {words}")
        return Result.from_dict(json.loads(out))


def main() -> None:
    """Entry of ``python -m``."""
    import importlib
    import time

    from hvd_core.conformance.cases import case_named
    from hvd_core.conformance.resolve import Target, resolve

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    importlib.import_module(order["module"])
    target = Target(order["name"], order["path"], order["origin"], order["python"])
    if order["described"]:
        target = resolve(order["name"])
    bare, result, started = Bare(target), Result(order["case"], PASS), time.monotonic()
    try:
        case_named(order["case"]).run(bare)
    except Skip as skipped:
        result.verdict, result.text = SKIPPED, str(skipped)
    except Failed as problem:
        result.verdict, result.text = FAIL, str(problem)
    except Exception as problem:
        result.verdict, result.text = FAIL, f"{type(problem).__name__}: {problem}"
    result.rows, result.seconds = bare.rows, time.monotonic() - started
    answers.write(json.dumps(result.as_dict()) + "\n")
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
