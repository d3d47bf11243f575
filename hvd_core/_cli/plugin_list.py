"""``hvd plugin list``: every backend, its origin, and whether it works on this machine.

The survey of all backends, the settings, and the sandbox for plugins' code also serve the other commands that examine
backends. A broken backend is a row too.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hvd_core._base import sandbox
from hvd_core._cli import output
from hvd_core.backends import _phases
from hvd_core.backends._candidate import PATH, WHEEL, Candidate, Problem
from hvd_core.backends._messages import of_exception
from hvd_core.backends.errors import BackendDuplicate, BackendError, BackendNotInstalled

if TYPE_CHECKING:
    from hvd_core._config.plugins_toml import PluginsConfig
    from hvd_core.backends._discovery.installed_backend import InstalledBackend


def run_sandboxed(
    work: Callable[[Callable[[object], None]], None], timeouts_s: Mapping[str, float]
) -> sandbox.Report:
    """Run ``work(send)``, which takes backends through their phases, in a fork. ``send(value)`` gives the caller a JSON
    value, which is not lost if a later phase fails.

    Must be called on the only thread of this process, before it has imported a plugin.
    """

    def phased(reporter: sandbox.Reporter) -> None:
        _phases.listen(reporter.enter)
        try:
            work(reporter.send)
        except BaseException as error:
            reporter.enter(_phases.left_by(error))
            raise

    return sandbox.run_forked(phased, timeouts_s, describe_error=of_exception)


AVAILABLE, UNAVAILABLE, BROKEN = "available", "unavailable", "broken"
DUPLICATE, VETOED, IGNORED, UNPROBED = "duplicate", "vetoed", "ignored", "not probed"


@dataclass
class Row:
    """One backend. ``status``: one of the words above. ``detail``: the reason, or the probe's detail. ``fix``: what to
    do."""

    name: str
    origin: str
    version: str = ""
    distribution: str = ""
    location: str = ""
    devices: list[str] = field(default_factory=list)
    provides: list[str] = field(default_factory=list)
    priority: int | None = None
    automatic: bool = False
    status: str = UNPROBED
    detail: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def config() -> PluginsConfig:
    """The merged plugins.toml of this user and site. Raises PluginsTomlError."""
    from hvd_core._config import plugins_toml

    return plugins_toml.load(os.environ)


def export(settings: PluginsConfig, name: str) -> None:
    """Set the backend's options from plugins.toml in this process's environment, as hvd.init() does."""
    from hvd_core.backends._selection import options as backend_options

    backend_options.export(name, settings.backend(name), os.environ)


def pinned(name: str, settings: PluginsConfig) -> str | None:
    """[backend.NAME].distribution, which decides between wheels with one backend name."""
    pin = settings.backend(name).distribution
    return pin.value if pin is not None else None


def survey(settings: PluginsConfig, probing: bool = True) -> tuple[list[Row], list[Problem]]:
    """(all backends in the order of discovery, the problems of discovery)."""
    from hvd_core.backends import _discovery
    from hvd_core.backends._discovery import registry

    local = [backend for backend in registry.local() if not backend.candidate.for_tests]
    rows = [_row(backend, settings, probing) for backend in local]
    taken = {row.name for row in rows}
    for candidate in _discovery.wheels():
        if candidate.name not in taken:
            rows.append(_wheel(candidate, settings, probing))
    problems = _discovery.problems()
    for problem in problems:
        if problem.kind != "duplicate":
            rows.append(_ignored(problem))
    return rows, list(problems)


def _wheel(candidate: Candidate, settings: PluginsConfig, probing: bool) -> Row:
    from hvd_core.backends import _discovery
    from hvd_core.backends._discovery.installed_backend import WheelBackend

    row = _known(candidate)
    try:
        chosen = _discovery.find(candidate.name, "hvd plugin list", pinned(candidate.name, settings))
    except BackendDuplicate as error:
        return _failed(row, DUPLICATE, error)
    except BackendNotInstalled as error:
        return _failed(row, IGNORED, error)
    if chosen != candidate:
        row.status, row.detail = IGNORED, f"plugins.toml pins {chosen.describe_origin()}"
        return row
    return _row(WheelBackend(candidate), settings, probing)


def _row(backend: InstalledBackend, settings: PluginsConfig, probing: bool) -> Row:
    row = _known(backend.candidate)
    veto = settings.vetoed_by(row.name)
    if veto is not None:
        row.status, row.detail = VETOED, veto
        row.fix = "ask the administrator of this site"
        if backend.candidate.origin == WHEEL:  # a forbidden wheel is not imported
            return row
    probing = probing and veto is None
    if backend.candidate.origin not in (WHEEL, PATH):
        _examine(row, backend, settings, probing, lambda row: None)
        return row

    from hvd_core.backends._selection.usable import limits

    done = run_sandboxed(
        lambda send: _examine(row, backend, settings, probing, send), limits(settings.probe_timeout_s)
    )
    done.relay_output()
    row = Row(**done.values[-1]) if done.values else row
    if done.fault:
        row.status, row.detail = BROKEN, done.describe()
        row.fix = f"hvd plugin doctor {row.name} shows its output"
        if row.distribution:
            row.fix += f"; pip uninstall {row.distribution} removes it"
    return row


def _examine(
    row: Row,
    backend: InstalledBackend,
    settings: PluginsConfig,
    probing: bool,
    send: Callable[[dict[str, Any]], None],
) -> None:
    """Complete the row by running the backend's code; ``send`` gets it after each phase."""
    try:
        row.devices, row.provides = list(backend.devices), sorted(backend.provides)
        row.priority, row.automatic, row.version = (
            backend.priority,
            backend.automatic,
            backend.version or row.version,
        )
        send(row.as_dict())
        if probing:
            _probe(row, backend, settings.probe_timeout_s)
    except BackendError as error:
        _failed(row, BROKEN, error)
    send(row.as_dict())


def _probe(row: Row, backend: InstalledBackend, timeout_s: float) -> None:
    from hvd_core.backends.descriptor import Available

    answer = backend.probe(timeout_s)
    if not isinstance(answer, Available):
        row.status, row.detail, row.fix = UNAVAILABLE, answer.reason, answer.fix
        return
    if backend.descriptor is None or backend.descriptor.python is None:
        backend.path()  # raises if the library is missing; a class in Python is not imported here, to save time
    row.status, row.detail = AVAILABLE, answer.detail


def _known(candidate: Candidate) -> Row:
    from hvd_core.version import __version__

    own = candidate.origin == "embedded"
    return Row(
        name=candidate.name,
        origin=candidate.origin,
        version=__version__ if own else candidate.version or "",
        distribution="hvd-core" if own else candidate.distribution or "",
        location=candidate.location or "",
    )


def _ignored(problem: Problem) -> Row:
    first, _, rest = problem.text.removeprefix("horovod: ").partition("\n")
    row = Row(problem.name, WHEEL, status=IGNORED, detail=first.partition("is ignored: ")[2] or first)
    row.fix = rest.strip().removeprefix("fix: ")
    return row


def _failed(row: Row, status: str, error: BackendError) -> Row:
    """The row with the error's cause, or else its first line, and its fix."""
    lines = [line.strip() for line in str(error).splitlines()]
    parts = {
        key: line[len(key) + 2 :]
        for line in lines[1:]
        for key in ("cause", "fix", "found")
        if line.startswith(f"{key}: ")
    }
    row.status = status
    first, _, fix = lines[0].removeprefix("horovod: ").partition("  fix: ")
    row.detail = parts.get("cause") or parts.get("found") or first
    row.fix = parts.get("fix", fix).partition("        check:")[0].partition("      check:")[0].strip()
    return row


# ---- the verb ---------------------------------------------------------------------------------------------------------

_LIST_STYLES = {BROKEN: "red", DUPLICATE: "red", UNAVAILABLE: "yellow", VETOED: "yellow", IGNORED: "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--no-probe", action="store_true", help="do not run the backends' probes")
    output.add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print the list. A broken backend is a row of the list, and does not change the exit code."""
    settings = config()
    rows, problems = survey(settings, probing=not options.no_probe)
    if options.json:
        from hvd_core.version import __version__

        output.document(
            {
                "hvd_core": __version__,
                "policy": settings.policy(),
                "spec": "HOROVOD_BACKEND_SPEC" in os.environ,
                "backends": [row.as_dict() for row in rows],
                "problems": [{"name": p.name, "kind": p.kind, "text": p.text} for p in problems],
            }
        )
        return output.OK
    output.table(
        ("name", "version", "from", "devices", "provides", "priority", "status"),
        map(_cells, rows),
        _LIST_STYLES,
    )
    if settings.policy():
        output.text(f"site policy: {settings.policy()}")
    fixes = [f"{row.name}: {row.fix}" for row in rows if row.fix and row.status != AVAILABLE]
    if fixes:
        output.text("fix:", *(f"  {fix}" for fix in dict.fromkeys(fixes)))
    return output.OK


def _cells(row: Row) -> tuple[str, ...]:
    priority = "" if row.priority is None else f"{row.priority}" if row.automatic else "by name only"
    place = row.distribution or {"path": f"HOROVOD_BACKEND_PATH_{row.name.upper()}"}.get(
        row.origin, row.origin
    )
    status = f"{row.status}: {row.detail}" if row.detail else row.status
    place = "embedded" if row.origin == "embedded" else place
    return row.name, row.version, place, ", ".join(row.devices), ", ".join(row.provides), priority, status
