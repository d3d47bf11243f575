"""The parser of horovodrun's command line. Pure functions; any thread."""

from __future__ import annotations

import argparse

from horovod._runner.config import add_options

_DESCRIPTION = (
    "Starts COMMAND once per process of a Horovod job, with the processes' output and rank in front of each "
    "line. The first process that fails ends the others and gives the exit code."
)

_SCRIPT = "command that prints the hosts of an elastic job, as lines host:slots; it is run again every second"


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
    add("--start-timeout", help="seconds the processes may take to find each other (30)")
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
    where.add_argument("--host-discovery-script", help=_SCRIPT)

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

    elastic = parser.add_argument_group("elastic jobs, whose number of processes changes")
    text = "fewest processes of a job; makes it elastic (default: -np)"
    elastic.add_argument("--min-np", "--min-num-proc", dest="min_num_proc", type=int, help=text)
    text = "most processes of an elastic job (default: as many as there are slots)"
    elastic.add_argument("--max-np", "--max-num-proc", dest="max_num_proc", type=int, help=text)
    text = "slots of a host for which the discovery script prints no number"
    elastic.add_argument("--slots-per-host", dest="slots", type=int, metavar="N", help=text)
    text = "seconds to wait for enough slots (600) [HOROVOD_ELASTIC_TIMEOUT]"
    elastic.add_argument("--elastic-timeout", type=int, metavar="SECONDS", help=text)
    text = "end the job after so many restarts of the training because of failures (default: no limit)"
    elastic.add_argument("--reset-limit", type=int, metavar="N", help=text)
    text = "start so many processes more than --max-np, which wait to take the place of one that dies (needs slots)"
    elastic.add_argument("--spares", type=int, metavar="K", help=text)
    text = (
        "seconds between a SIGTERM of a rank and its end: it commits and leaves (default: it ends at once) "
    )
    text += "[HOROVOD_PREEMPTION_GRACE]"
    elastic.add_argument("--preemption-grace", type=int, metavar="SECONDS", help=text)
    text = "kill a rank about every so many seconds, on purpose: a test of your program"
    elastic.add_argument("--elastic-chaos", type=float, metavar="SECONDS", help=text)
    text = "seconds for which a host is not used after a failure, doubled each time (default: for good)"
    elastic.add_argument(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        help=text,
    )

    how = parser.add_argument_group("how the processes are started").add_mutually_exclusive_group()
    text = "by horovodrun itself (the default, unless the backend mpi is named)"
    how.add_argument("--gloo", dest="use_gloo", **switch, help=text)
    how.add_argument("--mpi", dest="use_mpi", **switch, help="by mpirun")
    how.add_argument("--jsrun", dest="use_jsrun", **switch, help="not supported; an error tells what to do")
    parser.set_defaults(run_func=None, executable=None)
    return parser
