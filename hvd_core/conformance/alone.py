"""Runs cases without ranks in a process of their own, so that a crash, or a side effect of loading, stays there.

``python -m hvd_core.conformance.alone`` reads lines of JSON from standard input, the target first, then
{"case": ...}, and writes a Result for each.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

from hvd_core.conformance import interpreter
from hvd_core.conformance.backend import Backend, BackendFailure
from hvd_core.conformance.call_watch import Calls, watch
from hvd_core.conformance.cases import all_cases
from hvd_core.conformance.resolve import Target, resolve
from hvd_core.conformance.verdicts import (
    FAIL,
    PASS,
    SKIPPED,
    CaseArgument,
    Failed,
    Result,
    Skip,
    shown_output,
)


class Bare(CaseArgument):
    """The argument of a case without ranks: the target, and the backend, which is loaded at the first use."""

    def __init__(self, target, calls: Calls | None = None) -> None:
        self.target, self.rows, self._backend, self._calls = target, [], None, calls

    @property
    def backend(self):
        """The backend, loaded at the first use. Raises Failed if it does not load."""
        from hvd_core.conformance.worker import python_backend

        if self._backend is None:
            path = python_backend(self.target.python) if self.target.python else self.target.path
            try:
                self._backend = Backend(self.target.name, path, calls=self._calls)
            except (OSError, AttributeError, BackendFailure) as problem:
                raise Failed(f"does not load: {problem}") from problem
        return self._backend


class Alone:
    """The process that runs these cases in sequence. It is replaced after a crash, and for cases that need a fresh
    one."""

    def __init__(self, target, modules, patience: float) -> None:
        self._target, self._modules, self._patience = target, list(modules), patience
        self._process: subprocess.Popen | None = None
        self._earlier = ""  # the case that this process has run last

    def run(self, case) -> Result:
        """Runs a case without ranks to its verdict."""
        if case.fresh:
            self.close()
        if self._process is None:
            self._start()
        limit = case.seconds * self._patience
        after = f", perhaps because of the case before it, {self._earlier}" if self._earlier else ""
        self._earlier = case.name
        with suppress(BrokenPipeError):  # it has died since its last answer; reading finds out
            self._process.stdin.write(json.dumps({"case": case.name}).encode() + b"\n")
            self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(limit) else None
        if line and line.endswith(b"\n"):
            return Result.from_dict(json.loads(line))
        code = None if line is None else self._process.wait()
        self._errors.seek(0)
        words = shown_output(self._errors.read().decode(errors="replace"))
        self.close()
        if code is None:
            return Result(case.name, FAIL, f"did not end within {limit:g} s", [], limit)
        return Result(case.name, FAIL, f"the process died with status {code}{after}: {words}")

    def _start(self) -> None:
        target = self._target
        about = {"name": target.name, "path": target.path, "python": target.python, "origin": target.origin}
        about |= {"described": target.descriptor is not None, "modules": self._modules, "search": sys.path}
        about |= {"patience": self._patience, "interpreter": interpreter.WORDS}
        self._earlier = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            [*interpreter.WORDS, "-m", "hvd_core.conformance.alone"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self._process.stdin.write(json.dumps(about).encode() + b"\n")

    def close(self) -> None:
        """Ends the process. Nothing happens the second time."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._errors.close()
            self._process = None


def main() -> None:
    """Entry of ``python -m``."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    about = json.loads(sys.stdin.readline())
    sys.path += [place for place in about["search"] if place not in sys.path]
    interpreter.WORDS[:] = about["interpreter"]
    cases = {case.name: case for case in all_cases(about["modules"])}
    target = Target(about["name"], about["path"], about["origin"], about["python"])
    if about["described"]:
        target = resolve(about["name"])
    calls, case = Calls(), None
    bare = Bare(target, calls)

    def stuck(words: str) -> None:
        answers.write(json.dumps(Result(case.name, FAIL, words).as_dict()) + "\n")
        os._exit(1)

    watch(calls, about["patience"], stuck)
    for line in sys.stdin:
        case = cases[json.loads(line)["case"]]
        bare.rows = []
        result, started = Result(case.name, PASS), time.monotonic()
        try:
            case.run(bare)
        except Skip as skipped:
            result.verdict, result.text = SKIPPED, str(skipped)
        except Failed as problem:
            result.verdict, result.text = FAIL, str(problem)
        except Exception as problem:
            result.verdict, result.text = FAIL, f"{type(problem).__name__}: {problem}"
        result.rows, result.seconds = bare.rows, time.monotonic() - started
        answers.write(json.dumps(result.as_dict()) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
