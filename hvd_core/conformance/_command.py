"""The command line of the kit: which cases, where the reports go, the exit status.

Exit status: 0 nothing failed, 1 a case failed, 2 the arguments make no sense, 3 the backend was not found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_core.conformance._verdicts import FAIL

if TYPE_CHECKING:
    from hvd_core.conformance._cases import Case
    from hvd_core.conformance._session import Ranks


def parser() -> argparse.ArgumentParser:
    """The options."""
    from hvd_core.conformance._cases import LEVELS

    p = argparse.ArgumentParser(
        prog="python -m hvd_core.conformance",
        description="Tests a backend against the contract of hvd/backend_abi.h and reports what it serves.",
        epilog="Exit status: 0 nothing failed, 1 a case failed, 2 usage, 3 the backend was not found.",
    )
    p.add_argument("backend", nargs="?", help="name of an installed backend, or of the one in --library")
    p.add_argument(
        "-np", type=int, default=4, metavar="N", help="ranks to start (4); ignored in a job of mpirun"
    )
    p.add_argument(
        "--level",
        action="append",
        choices=list(LEVELS),
        metavar="L",
        help="only this level, L0 to L5; repeatable",
    )
    p.add_argument(
        "--case", action="append", metavar="ID", help="only this case, such as L2.allreduce; repeatable"
    )
    p.add_argument("--list", action="store_true", help="print the cases and stop")
    p.add_argument("--library", metavar="PATH", help="test this library; no wheel needs to be installed")
    p.add_argument(
        "--cases", action="append", default=[], metavar="MODULE", help="a module with cases of your own"
    )
    p.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE",
        help="a variable for the ranks; {rank} in VALUE is the number of each rank",
    )  # fmt: skip
    p.add_argument("--quick", action="store_true", help="smaller counts and fewer repetitions")
    p.add_argument("--patience", type=float, default=1.0, metavar="X", help="multiplies every timeout (1)")
    p.add_argument(
        "--json", metavar="FILE", help="results as JSON ('-': standard output, instead of the table)"
    )
    p.add_argument("--junit", metavar="FILE", help="results as JUnit XML")
    p.add_argument(
        "--matrix",
        metavar="FILE",
        help="support matrix in Markdown: a new file, or between the markers of FILE",
    )
    p.add_argument("-v", "--verbose", action="store_true", help="print the rows of passed cases too")
    return p


def select(cases: Sequence[Case], levels: Sequence[str] | None, ids: Sequence[str] | None) -> list[Case]:
    """The chosen cases. ValueError for an id that does not exist."""
    from hvd_core._config.hints import did_you_mean

    names = [c.name for c in cases]
    for wanted in ids or ():
        if wanted not in names:
            raise ValueError(
                f"horovod: conformance: there is no case '{wanted}'.{did_you_mean(wanted, names)}\n"
                "  list: python -m hvd_core.conformance --list"
            )
    if not levels and not ids:
        return list(cases)
    return [c for c in cases if c.name in (ids or ()) or c.level in (levels or ())]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the kit; the exit status."""
    from hvd_core.conformance import _report
    from hvd_core.conformance._cases import all_cases
    from hvd_core.conformance._session import inside_job

    p = parser()
    options = p.parse_args(arguments)
    try:
        cases = all_cases(options.cases)
        chosen = select(cases, options.level, options.case)
    except (ValueError, ImportError) as problem:
        print(problem, file=sys.stderr)
        return 2
    if options.list:
        _report.print_list(chosen)
        return 0
    odd = [text for text in options.env if "=" not in text.lstrip("=")]
    if odd:
        print(f"horovod: conformance: --env takes NAME=VALUE, not '{odd[0]}'", file=sys.stderr)
        return 2
    if options.matrix:
        try:  # before the cases run, not after
            _report.check(Path(options.matrix))
        except (ValueError, OSError) as problem:
            print(problem, file=sys.stderr)
            return 2
    if not options.backend or options.np < 1:
        p.print_usage(sys.stderr)
        print("horovod: conformance: name a backend, such as shm, and at least one rank", file=sys.stderr)
        return 2
    if inside_job():
        from hvd_core.conformance._launched import serve_or_lead

        return serve_or_lead(options, lambda ranks: run(options, chosen, ranks))
    try:
        _restart_as_a_job(options, sys.argv[1:] if arguments is None else arguments)
    except LookupError as problem:
        print(f"horovod: conformance: {problem}", file=sys.stderr)
        return 3
    return run(options, chosen)


def _restart_as_a_job(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Replaces this process by the launcher, if an installed backend needs one to start its ranks; otherwise returns.
    Raises LookupError if that launcher is not installed. A single rank needs no launcher.
    """
    if options.np == 1:
        return
    from hvd_core.backends.errors import BackendError
    from hvd_core.conformance._session import resolve

    try:
        descriptor = resolve(options.backend).descriptor
    except (BackendError, ImportError, AttributeError):
        return  # run() reports the error
    if descriptor is None or descriptor.launch is None:
        return
    words = [*descriptor.launch(options.np), sys.executable, "-m", "hvd_core.conformance", *arguments]
    # Some launchers give their ranks a terminal without a size and without colours.
    environment = {"COLUMNS": str(shutil.get_terminal_size((160, 24)).columns), **os.environ}
    if not sys.stdout.isatty():
        environment.setdefault("NO_COLOR", "1")
    sys.stdout.flush()
    os.execvpe(words[0], words, environment)


def _export_options(name: str) -> None:
    """Sets the options of plugins.toml in the ranks' environment, as hvd.init() does."""
    from hvd_core._config import plugins_toml
    from hvd_core.backends._selection import options as backend_options

    backend_options.export(name, plugins_toml.load(os.environ).backend(name), os.environ)


def run(options: argparse.Namespace, chosen: list[Case], ranks: Ranks | None = None) -> int:
    """Runs the chosen cases and writes the reports; the exit status."""
    from hvd_core.backends.errors import BackendError
    from hvd_core.conformance import _report
    from hvd_core.conformance._session import Session, resolve

    try:
        _export_options(options.backend)
        target = resolve(options.backend, options.library)
    except (BackendError, ImportError, AttributeError, FileNotFoundError, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 3
    size = ranks.size if ranks else options.np
    printer = _report.Table(target, size, options.verbose, quiet=options.json == "-")
    results = []
    with Session(
        target, size, modules=options.cases, quick=options.quick, patience=options.patience, ranks=ranks,
        environment=dict(text.split("=", 1) for text in options.env),
    ) as session:  # fmt: skip
        for case in chosen:
            result = session.run(case.name)
            results.append(result)
            printer.add(result, case.says)
    printer.end(results)
    if options.json:
        _report.write_json(options.json, target, size, results)
    if options.junit:
        _report.write_junit(Path(options.junit), target, results)
    if options.matrix:
        _report.write(Path(options.matrix), target, results)
    return 1 if any(r.verdict == FAIL for r in results) else 0
