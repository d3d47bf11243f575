"""The command `horovodrun`: reads its arguments, runs the job, and exits with its code.

    horovodrun -np 2 python train.py

run_commandline() is the console script; it owns the process: it sets signal handlers and exits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from horovod._runner.arguments import (
    INTRODUCTION,
    check_options,
    load_config_file,
    make_parser,
    no_number,
    options_without_effect,
    set_args_from_config,
    set_env_from_args,
)
from horovod._runner.job import Job
from horovod._runner.launch_spec import LaunchSpec
from horovod._runner.launcher import run_job
from horovod._runner.output import OutputClosedError
from horovod._runner.run_api import run_function

__all__ = ["make_parser", "parse_args", "run_commandline", "set_env_from_args"]

_LOOK_S = 20.0
_LOOK = "import importlib.util, sys; sys.exit(77 if importlib.util.find_spec('hvd_core') is None else 0)"


def _other_python(command: Sequence[str], exit_code: int) -> str:
    """For a failed job: a line about the Python that `command` begins with, if it has no hvd_core; else "".

    `exit_code`: of the rank that failed first. An exception that a Python program does not catch has the code 1.
    """
    python = shutil.which(command[0]) if command else None
    if exit_code != 1 or python is None or not os.path.basename(python).startswith("python"):
        return ""
    if not sys.executable or os.path.abspath(python) == os.path.abspath(sys.executable):
        return ""
    try:
        looked = subprocess.run(
            [python, "-c", _LOOK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LOOK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if looked.returncode != 77:
        return ""
    return (
        f"horovodrun: the ranks ran {python}, for which hvd-core is not installed. It is installed for "
        f"{sys.executable}: start the ranks with that Python, or install hvd-core for the other one.\n"
    )


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of horovodrun, with values of --config-file for options that the command line does not set.

    Args:
        argv: the words after "horovodrun"; None for those of this process. Exits with 2 if argparse rejects them.

    Returns:
        All options, None where not given.

    Raises:
        ValueError: a value is out of range, or the configuration file is wrong.
        NotImplementedError: this version does not support an option.
        OSError: the configuration file cannot be read.

    Example:
        >>> parse_args(["-np", "2", "python", "train.py"]).num_proc
        2
    """
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.version or args.check_build:
        return args
    if args.config_file:
        for key in set_args_from_config(args, load_config_file(args.config_file)):
            print(f"horovodrun: {args.config_file}: {key} is not known and was ignored", file=sys.stderr)
    check_options(args)
    for option in options_without_effect(args):
        print(f"horovodrun: {option}", file=sys.stderr)
    if args.num_proc is None and args.min_num_proc is None:
        parser.error(no_number(os.environ))
    if args.command[:1] == ["--"]:
        del args.command[0]
    if not args.command:
        parser.error("a command is required, such as: horovodrun -np 2 python train.py")
    return args


def _run(args: argparse.Namespace) -> list[Any] | None:
    """Runs the job of a filled-in horovod.runner._HorovodArgs: the results of `args.run_func` by rank, or None for a
    command.

    Raises RuntimeError that names the first rank that fails, and the exceptions of parse_args().
    """
    if args.run_func is not None:
        return run_function(args, args.run_func, (), {})
    check_options(args)
    text = run_job(LaunchSpec.from_options(args, args.command)).error_text()
    if text is not None:
        raise RuntimeError(text)
    return None


def _run_command(args: argparse.Namespace) -> int:
    """Runs the job; returns the exit code of horovodrun."""
    received: list[int] = []
    jobs: list[Job] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for job in jobs:
            job.stop()

    def started(job: Job) -> None:
        jobs.append(job)
        if received:
            job.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A signal that is ignored (nohup) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        outcome = run_job(LaunchSpec.from_options(args, args.command), started)
    except OutputClosedError:
        return 128 + signal.SIGPIPE
    if received:
        return 128 + received[0]
    text = outcome.error_text()
    if text is not None:
        print(text + _other_python(args.command, outcome.exit_code), file=sys.stderr, end="", flush=True)
    return outcome.exit_code


def run_commandline(argv: Sequence[str] | None = None) -> None:
    """The console script. Exits with the first failing rank's code (128 + signal), 2 for wrong or no arguments."""
    if not (sys.argv[1:] if argv is None else argv):
        print(INTRODUCTION, end="", file=sys.stderr)
        sys.exit(2)
    try:
        args = parse_args(argv)
        if args.version:
            from hvd_core.version import __version__

            print(__version__)
            code = 0
        elif args.check_build:
            from horovod._runner.check_build import check_build

            print(check_build())
            code = 0
        else:
            code = _run_command(args)
    except (ValueError, OSError, NotImplementedError) as error:
        print(f"horovodrun: error: {error}", file=sys.stderr)
        code = 2
    except RuntimeError as error:
        # Errors about backends or their settings have the same text as on the ranks.
        if not str(error).startswith("horovod: "):
            raise
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    run_commandline()
