"""Runs cases without ranks in a process of their own, so that a crash, or a side effect of loading, stays there.

``python -m hvd_core.conformance.alone`` reads lines of JSON from standard input, the target first, then
{"case": ...}, and writes a Result for each.
"""

from __future__ import annotations

import json
import os
import sys
import time

from hvd_core._base import sandbox
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
        self._child: sandbox.Child | None = None
        self._earlier = ""  # the case that this process has run last

    def run(self, case) -> Result:
        """Runs a case without ranks to its verdict."""
        if case.fresh:
            self.close()
        if self._child is None:
            self._child = self._start()
        limit = case.seconds * self._patience
        after = f", perhaps because of the case before it, {self._earlier}" if self._earlier else ""
        self._earlier = case.name
        child = self._child
        child.send({"case": case.name})
        answers = sandbox.receive_any([child], limit)
        if answer := answers.get(child):
            return Result.from_dict(answer)
        code = child.wait(limit) if answers else None
        words = shown_output(child.errors())
        self.close()
        if code is None:
            return Result(case.name, FAIL, f"did not end within {limit:g} s", [], limit)
        return Result(case.name, FAIL, f"the process {sandbox.describe_exit(code)}{after}: {words}")

    def _start(self) -> sandbox.Child:
        target = self._target
        about = {"name": target.name, "path": target.path, "python": target.python, "origin": target.origin}
        about |= {"described": target.descriptor is not None, "modules": self._modules, "search": sys.path}
        about |= {"patience": self._patience, "interpreter": interpreter.WORDS}
        self._earlier = ""
        child = sandbox.Child([*interpreter.WORDS, "-m", "hvd_core.conformance.alone"], own_group=False)
        child.send(about)
        return child

    def close(self) -> None:
        """Ends the process. Nothing happens the second time."""
        if self._child is not None:
            self._child.kill()
            self._child = None


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
