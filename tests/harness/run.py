"""Runs a function on several ranks: run_on_ranks(), and the mark `ranks` of a test (plugin.py) through it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from . import frameworks, pool
from .job import Outcome

DEFAULT = "default"


def run_on_ranks(
    ranks: int,
    function: Callable,
    *arguments,
    framework: str = "",
    env: dict[str, str | None] | None = None,
    process_env: dict[str, str] | None = None,
    init: str | None = DEFAULT,
    init_options: dict | None = None,
    command: list[str] | None = None,
    fresh: bool = False,
    timeout: float = 0.0,
) -> Outcome:
    """Executes `function` with `arguments` on every rank of a job; returns each rank's result and output.

    function: of a module; the ranks import it by the module's file. Arguments and results are pickled.
    framework: "torch", "tensorflow", "jax" or "mxnet": its variables and, where it has one, its own interpreter.
    env: variables for this call alone, set before the engine is initialised; None takes a variable away.
    process_env: variables that the ranks' processes start with. Each set of them has living jobs of its own.
    init: the module whose init() is called before with `init_options`, by default that of the framework; or None. The
        engine is shut down after the call.
    command: the launcher and the interpreter, in place of horovodrun and this interpreter.
    fresh: the ranks are new processes, which end with this call.
    timeout: seconds until the stacks of all ranks are dumped and the job is thrown away; 100, with a framework 400.

    Raises RanksFailed, an AssertionError, if a rank raises, dies, or does not answer in time.
    """
    __tracebackhide__ = True
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; a job has at least one")
    call = {
        "env": env or {},
        "init": module_to_initialize(framework, init),
        "init_options": init_options or {},
    }
    start = pool.Start(
        ranks,
        tuple(command or frameworks.horovodrun(ranks, framework=framework)),
        tuple(sorted(frameworks.environment_of(framework, process_env).items())),
    )
    seconds = timeout or (400.0 if framework else 100.0)
    return pool.call(start, place_of(function), arguments, call, seconds, fresh)


def module_to_initialize(framework: str, init: str | None) -> str | None:
    """The module whose init() begins a call."""
    if init != DEFAULT:
        return init
    return f"horovod.{framework}" if framework else "hvd_core"


def place_of(function: Callable) -> tuple[str, str]:
    """(file, name) by which the ranks find the function."""
    name = function.__qualname__
    if "<" in name:
        raise ValueError(f"{name} is not a function of a module, so the ranks cannot find it")
    return str(Path(sys.modules[function.__module__].__file__).resolve()), name
