"""Decides whether horovodrun itself (job.py) or mpirun (mpi_job.py) starts the ranks of a command or a function.

A rank of the backend "mpi" that mpirun has not started is alone in its MPI_COMM_WORLD. So mpirun starts a job that
names that backend, even without --mpi. For the launcher; blocks its thread.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from horovod._runner.arguments import check_elastic, is_elastic
from horovod._runner.functions import FunctionMemory
from horovod._runner.job import Outcome

BACKEND = "mpi"


class Stoppable(Protocol):
    """A job that runs."""

    def stop(self) -> None:
        """Ends the job. May be called from a signal handler, and repeatedly."""


def run_job(
    args: argparse.Namespace,
    command: Sequence[str],
    started: Callable[[Stoppable], None],
    extra_env: dict[str, str] | None = None,
    function: FunctionMemory | None = None,
) -> Outcome:
    """Runs `command` once per rank and returns when no process of it is left. Arguments and exceptions: job.run_job and
    mpi_job.run_mpi_job, and elastic_job.run_elastic_job."""
    check_elastic(args)
    if is_elastic(args):
        return _run_elastic_job(args, command, started, extra_env, function)
    asked = None if args.use_mpi else backend_asked_for(os.environ)
    if args.use_gloo and asked is not None and (args.num_proc or 0) > 1:
        raise ValueError(
            f"{asked} asks for the backend '{BACKEND}', whose processes mpirun must start: started by horovodrun itself "
            "(--gloo) each would be alone in its MPI. Leave --gloo out, or choose another backend."
        )
    if args.use_mpi or (asked is not None and (args.num_proc or 0) > 1):
        from horovod._runner.mpi import run_mpi_job

        if not args.use_mpi:
            text = f"horovodrun: {asked} asks for the backend '{BACKEND}': mpirun starts the processes (as with --mpi)"
            print(text, file=sys.stderr, flush=True)
        return run_mpi_job(args, command, started, extra_env, function)
    for option, value in (("--mpi-args", args.mpi_args), ("--binding-args", args.binding_args)):
        if value:
            raise ValueError(f"{option} is for mpirun, which does not start this job. Add --mpi.")
    controller = os.environ.get("HOROVOD_CONTROLLER", "").strip().lower()
    if controller not in ("", "gloo"):
        text = (
            f"horovodrun: HOROVOD_CONTROLLER={controller} is ignored; mpirun starts the processes with --mpi"
        )
        print(text, file=sys.stderr, flush=True)
    from horovod._runner.job import run_job as run_own_job

    return run_own_job(args, command, started, extra_env, function)


def _run_elastic_job(
    args: argparse.Namespace,
    command: Sequence[str],
    started: Callable[[Stoppable], None],
    extra_env: dict[str, str] | None,
    function: FunctionMemory | None,
) -> Outcome:
    asked = backend_asked_for(os.environ)
    if asked is not None:
        raise ValueError(
            f"{asked} asks for the backend '{BACKEND}', whose processes mpirun must start, and MPI ends all of them when "
            "one dies: an elastic job cannot use it. Choose another backend."
        )
    # Loading what only elastic jobs need would cost each start of horovodrun 10 ms.
    from horovod._runner.elastic_launcher import run_elastic_job

    return run_elastic_job(args, command, started, extra_env, function)


def backend_asked_for(environ: Mapping[str, str]) -> str | None:
    """The variable, or the line of a plugins.toml, that names the backend mpi, if that backend is installed here; else
    None.

    Faults of variables or files are ignored here, because the ranks report them. The older variables do not count: images
    set them, and without an mpirun that must not end the job; a rank warns that they are ignored."""
    from hvd_core._config import plugins_toml
    from hvd_core._config.selection_rules import ladder

    try:
        levels = ladder(environ, None, plugins_toml.load(environ).levels())
    except (ValueError, OSError):
        return None
    source = next(
        (r.source for level in levels if not level.soft for r in level.rules if BACKEND in r.names), None
    )
    return source if source is not None and _installed(environ) else None


def _installed(environ: Mapping[str, str]) -> bool:
    from hvd_core.backends import discovery
    from hvd_core.backends.discovery import registry

    if environ.get(f"HOROVOD_BACKEND_PATH_{BACKEND.upper()}"):
        return True
    try:
        return BACKEND in {found.name for found in (*registry.local(), *discovery.wheels())}
    except ValueError:
        return False
