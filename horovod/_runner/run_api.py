"""The implementation of `horovod.run`: runs a function instead of a command, and returns its results.

Blocks its thread until the job has ended. Any thread may call; Ctrl-C ends the job if it is the main thread.
"""

from __future__ import annotations

import argparse
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from horovod._runner.arguments import HorovodArgs, check_options, is_elastic
from horovod._runner.environment import is_this_python, python_path
from horovod._runner.failures import failure_of
from horovod._runner.functions import FunctionMemory, checked, pickled, read_all, write_all
from horovod._runner.job import Outcome
from horovod._runner.launch_spec import LaunchSpec
from horovod._runner.launcher import run_job

_OLD_NAMES = {
    "np": "num_proc",
    "min_np": "min_num_proc",
    "max_np": "max_num_proc",
    "network_interface": "network_interfaces",
}


def _settings(arguments: dict[str, Any]) -> argparse.Namespace:
    """The arguments of horovod.run as those of horovodrun. Raises ValueError, NotImplementedError."""
    given = dict(arguments)
    for old, new in _OLD_NAMES.items():
        value = given.pop(old)
        if value is not None:
            warnings.warn(
                f"horovod.run({old}=...) is deprecated, use {new}", DeprecationWarning, stacklevel=4
            )
            given[new] = value
    if given["hosts"] is not None and given["hostfile"] is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if given["use_gloo"] and given["use_mpi"]:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    settings = HorovodArgs()
    for name, value in given.items():
        if name != "network_interfaces":  # the others have the names of the options
            setattr(settings, name, value)
    if settings.num_proc is None and not is_elastic(settings):
        settings.num_proc = 1
    elif is_elastic(settings) and settings.num_proc == 1 < (settings.min_num_proc or 1):
        settings.num_proc = None  # the default of the parameter
    for name in ("num_proc", "min_num_proc", "max_num_proc", "slots"):
        value = given[name]
        if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
            raise TypeError(f"horovod.run({name}={value!r}): an integer is needed.")
    interfaces = given["network_interfaces"]
    if isinstance(interfaces, str):
        interfaces = [name.strip() for name in interfaces.split(",")]
    settings.nics = set(interfaces) if interfaces else None
    return settings


def run_from_arguments(arguments: dict[str, Any]) -> list[Any]:
    """Implements horovod.run. `arguments`: its parameters by name."""
    call = checked("horovod.run", *(arguments.pop(name) for name in ("func", "args", "kwargs")))
    return run_function(_settings(arguments), *call)


def run_function(
    options: argparse.Namespace, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """The results of `func(*args, **kwargs)` on the ranks of a job. `options`: those of horovodrun.

    Raises the exceptions of horovod.run.
    """
    check_options(options)
    data = pickled("horovod.run", func, args, kwargs)
    python = options.executable or sys.executable
    # With other hosts it may be there and not here; run_job() looks where there are ranks here.
    elsewhere = options.hosts or options.hostfile or options.host_discovery_script
    if elsewhere is None and shutil.which(python) is None:
        raise ValueError(f"The Python interpreter {python!r} was not found or cannot be executed.")
    env = {"PYTHONPATH": python_path()} if is_this_python(python) else {}
    spec = LaunchSpec.from_options(options, [python, "-m", "horovod._runner.run_task"], env)
    elastic = spec.elastic is not None
    memory = FunctionMemory(() if elastic else range(spec.num_proc))
    try:
        write_all(memory.function, data)
        outcome = run_job(replace(spec, function=memory))
        _correct_the_cause(outcome, memory.results)
        text = outcome.error_text()
        if text is None and spec.elastic is not None:
            return _results_of_last_world(outcome.last_world, memory.results, spec.elastic.least)
        if text is None:
            return [_result(rank, place) for rank, place in memory.results.items()]
        error = _failure(outcome, memory.results, python, "process" if elastic else "rank")
        raise error from error.__cause__
    finally:
        memory.close()


def _results_of_last_world(members: list[int], places: dict[int, int], count: int) -> list[Any]:
    """The results of its first ranks. (The number of ranks depends on the hosts at the end; Horovod returns as many as
    the job has at least.)"""
    if not members:
        raise RuntimeError("The processes ended with status 0, and none of them has called hvd.init().")
    return [_result(member, places.get(member)) for member in members[:count]]


def _result(rank: int, place: int | None) -> Any:
    data = b"" if place is None else read_all(place)
    if not data:
        raise RuntimeError(
            f"Process {rank} ended with status 0 before the function returned, so it has no result."
        )
    return pickle.loads(data)[1]


def _correct_the_cause(outcome: Outcome, places: dict[int, int]) -> None:
    """Names the rank that failed by itself, where a rank was seen to end first that failed only because of it. (A process
    may take its time to end after its function has raised, and be killed meanwhile.)"""
    from hvd_core.errors import HorovodInternalError

    def failed_by_itself(rank: int) -> bool | None:
        data = read_all(places[rank]) if rank in places else b""  # a dead process of an elastic job has none
        record: tuple[Any, ...] = pickle.loads(data) if data else (True,)
        return None if record[0] else not isinstance(record[2], HorovodInternalError)

    if outcome.first_failed is None or failed_by_itself(outcome.first_failed[0]) is not False:
        return
    others = [rank for rank, _ in (*outcome.failures, *outcome.late)]
    causes = [rank for rank in dict.fromkeys([*others, *places]) if failed_by_itself(rank)]
    if causes:
        outcome.culprit, outcome.quitter = (causes[0], 1), None


def _failure(outcome: Outcome, places: dict[int, int], python: str, what: str) -> RuntimeError:
    """The exception for a failed job: that of the rank which failed first, with its traceback, before Horovod's text."""
    text, rank = outcome.error_text(), outcome.raised
    if rank is None:
        return RuntimeError(text)
    code = outcome.first_failed[1] if outcome.first_failed else outcome.exit_code
    data = read_all(places[rank]) if rank in places else None
    return failure_of(rank, code, data).exception(None, python, what, text or "")
