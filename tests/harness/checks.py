"""How tests say that a function runs on several ranks: on_ranks and run_on_ranks."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

from . import pool
from .job import Outcome

TESTS = Path(__file__).resolve().parents[1]


def run_on_ranks(
    ranks: int,
    function: Callable | str,
    *arguments,
    env: dict[str, str | None] | None = None,
    init: str | None = "hvd_core",
    init_options: dict | None = None,
    timeout: float = 100.0,
    command: list[str] | None = None,
    process_env: dict[str, str] | None = None,
    kind: str = "",
) -> Outcome:
    """Executes `function` with `arguments` on every rank of a living job; returns each rank's result and output.

    function: of a module that the ranks import by its file, or text as "torch/ranks_basics.py::check_sum" (from tests/),
        for a module that this process had better not import. Arguments and results are pickled.
    env: variables for this call alone, set before the engine is initialised; None takes a variable away.
    init: the module whose init() is called before with `init_options`, or None. The engine is shut down after the call.
    timeout: seconds until the stacks of all ranks are dumped and the job is thrown away.
    command: the launcher and the interpreter, in place of horovodrun and this interpreter.
    process_env: variables that the ranks' processes start with. Each set of them has living jobs of its own.
    kind: a word for jobs that import something heavy ("torch"), so that others stay small.

    Raises RanksFailed, an AssertionError, if a rank raises, dies, or does not answer in time.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; a job has at least one")
    options = {"env": env or {}, "init": init, "init_options": init_options or {}}
    where = place_of(function)
    return pool.call((ranks, kind), command, process_env or {}, where, arguments, options, timeout)


def on_ranks(*counts: int, **options):
    """Decorator: the test is executed on every rank of a job of so many ranks; for several counts, once for each.

    The options are those of run_on_ranks(). Parameters of the function are pytest's parameters, not its fixtures.
    """

    def decorate(body):
        parameters = list(inspect.signature(body).parameters.values())

        def test(**values):
            ranks = values.pop("ranks", counts[0])
            run_on_ranks(ranks, body, *(values[p.name] for p in parameters), **options)

        test.__name__, test.__qualname__ = body.__name__, body.__qualname__
        test.__doc__, test.__module__ = body.__doc__, body.__module__
        test.pytestmark = list(getattr(body, "pytestmark", []))
        test.on_ranks_body = body
        if len(counts) > 1:
            import pytest  # here, as ranks that are interpreters import this module too

            ranks = inspect.Parameter("ranks", inspect.Parameter.KEYWORD_ONLY)
            test.__signature__ = inspect.Signature([*parameters, ranks])
            return pytest.mark.parametrize("ranks", counts)(test)
        test.__signature__ = inspect.Signature(parameters)
        return test

    return decorate


def check_names(module: str) -> list[str]:
    """Names of the functions check_* of a module such as "torch/ranks_basics.py", in the order of the file; it is not
    imported."""
    return re.findall(r"^def (check_\w+)", (TESTS / module).read_text(), re.MULTILINE)


def place_of(function: Callable | str) -> tuple[str, str]:
    """(file, name) by which the ranks find the function."""
    if isinstance(function, str):
        path, _, name = function.partition("::")
        return str(TESTS / path), name
    name = function.__qualname__
    if "<" in name:
        raise ValueError(f"{name} is not a function of a module, so the ranks cannot find it")
    return str(Path(sys.modules[function.__module__].__file__).resolve()), name
