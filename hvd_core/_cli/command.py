"""The verbs of ``hvd``: finds the one that a command line names, runs it, and decides the exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from hvd_core._cli import output

_EPILOG = "exit codes: 0 no fault; 1 a fault; 2 could not run (wrong arguments, unknown name); 130 Ctrl-C"
_CHECK = "plugin check"  # its arguments are those of the kit
_KIT_REFUSES = (2, 3)  # the kit's exit codes for wrong arguments, backend not found

# verb: (its module in hvd_core._cli, its line in --help).
VERBS = {
    "plugin list": ("plugin_list", "list all backends, and whether each works on this machine"),
    "plugin show": ("plugin_show", "show one backend: tables, slots, options and services"),
    "plugin doctor": ("plugin_doctor", "run all phases one by one, and report which one fails, and why"),
    _CHECK: ("", "run the conformance kit on a backend"),
    "plugin new": (
        "plugin_new",
        "write the project of a new backend, which works immediately on a simulator",
    ),
    "plugin config": ("config", "show the configuration of a job started here"),
    "config": ("config", "show the configuration of a job started here"),
    "doctor": ("doctor", "examine backends; ask a running job; pack a bug report"),
    "timeline": ("timeline", "timelines: --live, merge, summarize"),
    "flight": ("flight", "show the last events of the ranks of a job that failed"),
    "bench": ("bench", "measure collectives here, beside the alternatives that are installed"),
    "docs": ("docs", "print a page of the documentation, or their list"),
}


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The grammar. Only the verb that ``arguments`` begin with is imported; of the others the grammar has the name and
    the line in --help."""
    from hvd_core.version import __version__

    parser = argparse.ArgumentParser(
        prog="hvd",
        description="Communication backends of hvd-core: list, examine, test, and create them.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"hvd-core {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    of_plugins = ", ".join(verb.removeprefix("plugin ") for verb in VERBS if verb.startswith("plugin "))
    plugin = commands.add_parser("plugin", help=f"backends: {of_plugins}", epilog=_EPILOG)
    plugin_verbs = plugin.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb, (module, summary) in VERBS.items():
        *group, name = verb.split()
        made = (plugin_verbs if group else commands).add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".", epilog=_EPILOG
        )
        if [*group, name] == list(arguments[: len(group) + 1]) and verb != _CHECK:
            loaded = import_module(f"hvd_core._cli.{module}")
            loaded.add_arguments(made)
            made.set_defaults(run=loaded.run)
    return parser


def _check(arguments: Sequence[str]) -> int:
    """Run the conformance kit; ``arguments`` are its own (``python -m hvd_core.conformance --help``)."""
    from hvd_core._cli.examination import config, export
    from hvd_core.conformance import _command

    if not arguments:
        raise ValueError("hvd plugin check needs the name of a backend; list: hvd plugin list")
    if not arguments[0].startswith("-"):
        export(config(), arguments[0].lower())
    code = _command.main(arguments)
    return output.REFUSED if code in _KIT_REFUSES else code


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: ``sys.argv[1:]`` when None.

    Returns:
        The exit code. An error that the user can fix is printed to standard error (exit code 2).
    """
    from hvd_core.backends.errors import BackendError

    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:2] == _CHECK.split():
            return _check(arguments[2:])
        options = _parser(arguments).parse_args(arguments)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except SystemExit as end:  # argparse has printed its message
        return int(end.code or 0)
    except (BackendError, ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader, for instance `head`, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return output.OK
        message = str(error)
        print(message if message.startswith("horovod: ") else f"horovod: {message}", file=sys.stderr)
        return output.REFUSED
    except KeyboardInterrupt:
        return output.INTERRUPTED
