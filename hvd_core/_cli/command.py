"""The grammar of ``hvd``: verbs, their arguments, and which module does the work. Decides the exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module

from hvd_core._cli import output
from hvd_core._cli.bench import add_options as add_bench_options
from hvd_core._cli.output import documents_only

_EPILOG = "exit codes: 0 no fault; 1 a fault; 2 could not run (wrong arguments, unknown name); 130 Ctrl-C"


def _parser() -> argparse.ArgumentParser:
    from hvd_core.version import __version__

    parser = argparse.ArgumentParser(
        prog="hvd",
        description="Communication backends of hvd-core: list, examine, test, and create them.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"hvd-core {__version__}")
    groups = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    plugin = groups.add_parser(
        "plugin", help="backends: list, show, doctor, check, new, config", epilog=_EPILOG
    )
    verbs = plugin.add_subparsers(title="verbs", metavar="VERB", required=True)
    _list(verbs)
    _show(verbs)
    _doctor(verbs)
    _check(verbs)
    _new(verbs)
    _config(verbs)
    _config(groups)
    _doctor_of_jobs(groups)
    _timeline(groups)
    _flight(groups)
    _bench(groups)
    _docs(groups)
    return parser


def _verb(verbs, name: str, module: str, text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", epilog=_EPILOG)
    parser.set_defaults(work=module)
    return parser


def _with_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="one JSON document on standard output instead of tables"
    )


def _list(verbs) -> None:
    parser = _verb(verbs, "list", "listing", "list all backends, and whether each works on this machine")
    parser.add_argument("--no-probe", action="store_true", help="do not run the backends' probes")
    _with_json(parser)


def _show(verbs) -> None:
    parser = _verb(verbs, "show", "showing", "show one backend: tables, slots, options and services")
    parser.add_argument("name", metavar="NAME")
    _with_json(parser)


def _doctor(verbs) -> None:
    parser = _verb(
        verbs, "doctor", "doctor", "run all phases one by one, and report which one fails, and why"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="one backend only")
    parser.add_argument("--no-open", action="store_true", help="open no device and run no collective")
    _with_json(parser)


def _doctor_of_jobs(groups) -> None:
    parser = groups.add_parser(
        "doctor",
        help="examine backends; ask a running job; pack a bug report",
        description="Without options: run all phases of all backends, as `hvd plugin doctor`. With --pid, --job or "
        "--bundle: ask a running job of yours what it does, or pack a bug report.",
        epilog=_EPILOG,
    )
    parser.set_defaults(work="asking")
    parser.add_argument("name", metavar="NAME", nargs="?", help="one backend only")
    parser.add_argument("--no-open", action="store_true", help="open no device and run no collective")
    parser.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="ask one process of a running job: what it waits for, its last submissions, the stacks of its threads",
    )
    parser.add_argument(
        "--job",
        type=int,
        nargs="?",
        const=0,
        metavar="PID",
        help="ask all processes of a running job: which ranks wait for which, and what these do instead. PID: any "
        "process of the job, if you run several on this host. With --bundle the answer is packed too",
    )
    parser.add_argument(
        "--bundle",
        metavar="OUT.tar.gz",
        help="pack a bug report: flight recorders, versions, variables without secrets, facts about this host, "
        "backends, logs",
    )
    parser.add_argument(
        "--log",
        action="append",
        metavar="FILE",
        help="with --bundle: pack the end of this file too (repeatable)",
    )
    _with_json(parser)


def _check(verbs) -> None:
    # run() passes its arguments to the kit unchanged; this entry is for the list of verbs.
    parser = _verb(verbs, "check", "checking", "run the conformance kit on a backend")
    parser.add_argument("name", metavar="NAME")


def _new(verbs) -> None:
    parser = _verb(
        verbs, "new", "new", "write the project of a new backend, which works at once on a simulator"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="the backend's name, such as acme")
    parser.add_argument(
        "--device",
        metavar="TYPE",
        help="the device type that it serves, as in tensor.to(TYPE); cpu: host memory",
    )
    parser.add_argument(
        "--library", metavar="SONAME", help="your library, such as libacme.so.2 (the simulator)"
    )
    parser.add_argument(
        "--runtime", metavar="PREFIX", help="prefix of the device runtime's functions (NAMErt)"
    )
    ids = parser.add_mutually_exclusive_group()
    ids.add_argument("--id-bytes", type=int, metavar="N", help="size of the library's unique id (128)")
    ids.add_argument(
        "--store",
        action="store_true",
        help="it has no unique id: ranks use the job's store for the rendezvous",
    )
    parser.add_argument("--directory", metavar="DIR", help="where to write it (./hvd-backend-NAME)")
    _with_json(parser)


def _config(verbs) -> None:
    parser = _verb(verbs, "config", "explain", "show the configuration of a job started here")
    parser.add_argument("--explain", action="store_true", help="with the source of each value (the default)")
    _with_json(parser)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no port: give a number from 0, any free port, to 65535"
        )
    return int(text)


def _timeline(groups) -> None:
    group = groups.add_parser(
        "timeline",
        help="timelines: --live, merge, summarize",
        description="With --live: show a running job of yours on this host in a browser, until Ctrl-C. The page is "
        "served on this host only, at the address that is printed.",
        epilog=_EPILOG,
    )
    group.set_defaults(work="live", json=False)
    how = group.add_mutually_exclusive_group()
    how.add_argument("--pid", type=int, metavar="PID", help="with --live: a process of the job")
    how.add_argument("--job", type=int, metavar="PID", help="with --live: likewise, as for `hvd doctor`")
    group.add_argument("--live", action="store_true", help="show a running job in a browser")
    group.add_argument("--port", type=_port, metavar="PORT", help="with --live: the port (any free one)")
    verbs = group.add_subparsers(title="verbs", metavar="VERB")
    parser = _verb(
        verbs, "merge", "timeline", "put the timelines of several ranks into one file, on one clock"
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a timeline, or a pattern such as 't.rank*.json'"
    )
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the file to write")
    parser.set_defaults(verb="merge")
    _with_json(parser)
    parser = _verb(
        verbs,
        "summarize",
        "timeline",
        "show exposed communication, overlap, stragglers and the slowest tensors",
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--top", type=int, metavar="N", default=10, help="how many tensors to show (10)")
    parser.set_defaults(verb="summarize")
    _with_json(parser)


def _flight(groups) -> None:
    parser = _verb(groups, "flight", "flight", "show the last events of the ranks of a job that failed")
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="a file, or the folder of a job (the newest job that failed here)",
    )
    parser.add_argument("--last", type=int, metavar="N", default=50, help="events of each rank (50); 0: all")
    _with_json(parser)


def _bench(groups) -> None:
    parser = _verb(
        groups, "bench", "bench", "measure collectives here, beside the alternatives that are installed"
    )
    add_bench_options(parser)
    _with_json(parser)


def _docs(groups) -> None:
    parser = _verb(groups, "docs", "pages", "print a page of the documentation, or their list")
    parser.add_argument("page", metavar="PAGE", nargs="?", help="a page's name, such as backend-abi")
    _with_json(parser)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code. An error that the user can fix is printed to standard error (exit code
    2)."""
    from hvd_core.backends.errors import BackendError

    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:2] == ["plugin", "check"]:
            from hvd_core._cli.plugin_check import check

            return check(arguments[2:])
        options = _parser().parse_args(arguments)
        with documents_only() if options.json else nullcontext():
            code = import_module(f"hvd_core._cli.{options.work}").run(options)
        sys.stdout.flush()
        return code
    except SystemExit as end:  # argparse has printed its message
        return int(end.code or 0)
    except (BackendError, ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader, for instance `head`, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return output.OK
        text = str(error)
        print(text if text.startswith("horovod: ") else f"horovod: {text}", file=sys.stderr)
        return output.REFUSED
    except KeyboardInterrupt:
        return output.INTERRUPTED
