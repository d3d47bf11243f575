"""The command `horovodrun`: parser and main function.

    horovodrun -np 2 python train.py

run_commandline() is the console script; it owns the process: it sets signal handlers and exits.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from horovod.runner.config import (
    add_options,
    load_config_file,
    set_args_from_config,
    set_env_from_args,
    validate_config_args,
)
from horovod.runner.job import check_supported
from horovod.runner.output import OutputClosedError
from horovod.runner.starting import Stoppable, run_job

__all__ = ["make_parser", "parse_args", "run_commandline", "set_env_from_args"]

_DESCRIPTION = (
    "Starts COMMAND once per process of a Horovod job, with the processes' output and rank in front of each "
    "line. The first process that fails ends the others and gives the exit code."
)


def _interfaces(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


_interfaces.__name__ = "interfaces"


def make_parser() -> argparse.ArgumentParser:
    """The parser of horovodrun. All defaults are None: "not given"."""
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np N [option ...] command [argument ...]",
        description=_DESCRIPTION,
    )
    add, switch = parser.add_argument, {"action": "store_const", "const": True}
    add("-v", "--version", **switch, help="print the version and exit")
    add("-np", "--num-proc", dest="num_proc", type=int, help="number of processes")
    add("-cb", "--check-build", **switch, help="print frameworks, backends and versions, and exit")
    add("--disable-cache", **switch, help="accepted; nothing is cached")
    add("--start-timeout", type=int, help="seconds the processes may take to find each other (30)")
    names = ("--network-interfaces", "--network-interface")
    add(*names, dest="nics", type=_interfaces, help="comma-separated interfaces to use")
    add("--output-filename", help="folder that gets rank.<n>/stdout and rank.<n>/stderr as well")
    add("-prefix-timestamp", "--prefix-output-with-timestamp", **switch, help="the time before each line")
    add("--verbose", **switch, help="print the commands and processes of the job")
    add("--config-file", help="YAML file with values for the options below")
    add("command", nargs=argparse.REMAINDER, help="the command to run, with its arguments")

    where = parser.add_argument_group("hosts").add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", help="hosts and their slots: localhost:4, or h1:2,h2:2")
    where.add_argument("-hostfile", "--hostfile", help="file with a line 'HOST slots=N' per host")
    where.add_argument("--host-discovery-script", help="elastic jobs; not supported yet")

    remote = parser.add_argument_group("other hosts (no effect on local processes)")
    remote.add_argument("-p", "--ssh-port", type=int, help="port of ssh")
    remote.add_argument("-i", "--ssh-identity-file", help="private key of ssh")
    text = "command that executes another one on {host}, instead of ssh [HOROVOD_REMOTE_SHELL]"
    remote.add_argument("--remote-shell", metavar="TEMPLATE", help=text)
    text = "Python that has horovod there (default: the same path as here) [HOROVOD_REMOTE_PYTHON]"
    remote.add_argument("--remote-python", metavar="PYTHON", help=text)

    add_options(parser)

    mpi = parser.add_argument_group("MPI (with --mpi)")
    mpi.add_argument(
        "--tcp", dest="tcp_flag", **switch, help="do not use InfiniBand; also without MPI [NCCL_IB_DISABLE]"
    )
    mpi.add_argument(
        "--mpi-args", help="more arguments of mpirun, as one text: --mpi-args='-x NAME --map-by numa'"
    )
    text = "arguments of mpirun that bind and map the processes, instead of: --bind-to none --map-by slot"
    mpi.add_argument("--binding-args", help=text)

    elastic = parser.add_argument_group("elastic jobs (not supported yet)")
    elastic.add_argument("--min-np", "--min-num-proc", dest="min_num_proc", type=int)
    elastic.add_argument("--max-np", "--max-num-proc", dest="max_num_proc", type=int)
    elastic.add_argument("--slots-per-host", dest="slots", type=int)
    elastic.add_argument("--elastic-timeout", type=int)
    elastic.add_argument("--reset-limit", type=int)
    elastic.add_argument("--blacklist-cooldown-range", dest="cooldown_range", type=int, nargs=2)

    how = parser.add_argument_group("how the processes are started").add_mutually_exclusive_group()
    text = "by horovodrun itself (the default, unless the backend mpi is named)"
    how.add_argument("--gloo", dest="use_gloo", **switch, help=text)
    how.add_argument("--mpi", dest="use_mpi", **switch, help="by mpirun")
    how.add_argument("--jsrun", dest="use_jsrun", **switch, help="not supported yet")
    parser.set_defaults(run_func=None, executable=None)
    return parser


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of horovodrun, with values of --config-file for options that the command line does not set.

    Exits with 2 if argparse rejects the arguments. Raises ValueError for values out of range and wrong configuration
    files, NotImplementedError for options that this version does not support, OSError if the file cannot be read.
    """
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.version or args.check_build:
        return args
    if args.config_file:
        for key in set_args_from_config(args, load_config_file(args.config_file)):
            print(f"horovodrun: {args.config_file}: {key} is not known and was ignored", file=sys.stderr)
    validate_config_args(args)
    check_supported(args)
    if args.num_proc is None:
        parser.error("argument -np/--num-proc is required")
    if args.command[:1] == ["--"]:
        del args.command[0]
    if not args.command:
        parser.error("a command is required, such as: horovodrun -np 2 python train.py")
    return args


class _Signals:
    """Turns signals that end programs into a request to end the job."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self):
        self.received: int | None = None
        self._job: Stoppable | None = None

    def attach(self, job: Stoppable) -> None:
        self._job = job
        if self.received is not None:
            job.stop()

    def install(self) -> None:
        for number in self.NUMBERS:
            # A signal that is ignored (nohup) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame) -> None:
        self.received = self.received or number
        if self._job is not None:
            self._job.stop()


def _run(args: argparse.Namespace) -> int:
    """Runs the job; returns the exit code of horovodrun."""
    signals = _Signals()
    signals.install()
    try:
        outcome = run_job(args, args.command, signals.attach)
    except OutputClosedError:
        return 128 + signal.SIGPIPE
    if signals.received is not None:
        return 128 + signals.received
    text = outcome.error_text()
    if text is not None:
        print(text, file=sys.stderr, end="", flush=True)
    return outcome.exit_code


def run_commandline(argv: Sequence[str] | None = None) -> None:
    """The console script. Exits with the first failing rank's code (128 + signal), 2 for wrong arguments."""
    try:
        args = parse_args(argv)
        if args.version:
            from hvd_core.version import __version__

            print(__version__)
            code = 0
        elif args.check_build:
            from horovod.runner.check_build import check_build

            print(check_build())
            code = 0
        else:
            code = _run(args)
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
