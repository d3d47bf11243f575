"""``hvd plugin list``: every backend, its origin, and whether it works on this machine. A broken backend is a row too."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from hvd_core._cli import output
from hvd_core._cli.examination import FIND_LIBRARY, config, examine, export, pinned
from hvd_core.backends._candidate import WHEEL, Candidate, Problem
from hvd_core.backends._phases import DESCRIBE, PROBE
from hvd_core.backends.errors import BackendDuplicate, BackendNotInstalled

if TYPE_CHECKING:
    from hvd_core._config.plugins_toml import PluginsConfig
    from hvd_core.backends._discovery.installed_backend import InstalledBackend

__all__ = ["AVAILABLE", "Row", "add_arguments", "config", "export", "run", "survey"]

AVAILABLE, UNAVAILABLE, BROKEN = "available", "unavailable", "broken"
DUPLICATE, VETOED, IGNORED, UNPROBED = "duplicate", "vetoed", "ignored", "not probed"
_STYLES = {BROKEN: "red", DUPLICATE: "red", UNAVAILABLE: "yellow", VETOED: "yellow", IGNORED: "dim"}


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


def survey(settings: PluginsConfig, probing: bool = True) -> tuple[list[Row], list[Problem]]:
    """(all backends in the order of discovery, the problems of discovery)."""
    from hvd_core.backends import _discovery
    from hvd_core.backends._discovery import registry

    local = [backend for backend in registry.local() if not backend.candidate.for_tests]
    rows = [_examined(backend, settings, probing) for backend in local]
    taken = {row.name for row in rows}
    rows += [_wheel(found, settings, probing) for found in _discovery.wheels() if found.name not in taken]
    problems = list(_discovery.problems())
    for problem in problems:
        if problem.kind != "duplicate":
            row = _with_message(Row(problem.name, WHEEL), IGNORED, problem.text)
            row.detail = row.detail.rpartition("is ignored: ")[2]
            rows.append(row)
    return rows, problems


def _wheel(candidate: Candidate, settings: PluginsConfig, probing: bool) -> Row:
    from hvd_core.backends import _discovery

    row = _known(candidate)
    try:
        chosen = _discovery.lookup(candidate.name, "hvd plugin list", pinned(candidate.name, settings))
    except BackendDuplicate as error:
        return _with_message(row, DUPLICATE, str(error))
    except BackendNotInstalled as error:
        return _with_message(row, IGNORED, str(error))
    if chosen.candidate != candidate:
        row.status, row.detail = IGNORED, f"plugins.toml pins {chosen.origin}"
        return row
    return _examined(chosen, settings, probing)


def _examined(backend: InstalledBackend, settings: PluginsConfig, probing: bool) -> Row:
    row = _known(backend.candidate)
    veto = settings.vetoed_by(row.name)
    if veto is not None:
        row.status, row.detail, row.fix = VETOED, veto, "ask the administrator of this site"
        if row.origin == WHEEL:  # a forbidden wheel is not imported
            return row
    steps = (DESCRIBE, PROBE, FIND_LIBRARY) if probing and veto is None else (DESCRIBE,)
    done = examine(backend, settings, steps, until_unavailable=True)
    done.report.relay_output()
    described, probe = done.found.get(DESCRIBE), done.found.get(PROBE)
    if described:
        row.devices, row.provides = described["devices"], described["provides"]
        row.priority, row.automatic = described["priority"], described["automatic"]
        row.version = described["version"] or row.version
    if done.report.fault:
        row.status, row.detail = BROKEN, done.report.describe()
        row.fix = f"hvd plugin doctor {row.name} shows its output"
        row.fix += f"; pip uninstall {row.distribution} removes it" if row.distribution else ""
    elif done.error:
        _with_message(row, BROKEN, done.error)
    elif probe and probe["available"]:
        row.status, row.detail = AVAILABLE, probe["detail"]
    elif probe:
        row.status, row.detail, row.fix = UNAVAILABLE, probe["reason"], probe["fix"]
    return row


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


def _with_message(row: Row, status: str, message: str) -> Row:
    """The row with the cause of an error message, or else its first line, and its fix."""
    first, *lines = (line.strip() for line in message.removeprefix("horovod: ").splitlines())
    first, _, fix = first.partition("  fix: ")
    parts = {key: text for key, _, text in (line.partition(": ") for line in lines)}
    row.status = status
    row.detail = parts.get("cause") or parts.get("found") or first
    row.fix = parts.get("fix", fix).partition("check:")[0].strip()
    return row


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
                "backends": [asdict(row) for row in rows],
                "problems": [asdict(problem) for problem in problems],
            }
        )
        return output.OK
    columns = ("name", "version", "from", "devices", "provides", "priority", "status")
    output.table(columns, map(_cells, rows), _STYLES)
    if settings.policy():
        output.text(f"site policy: {settings.policy()}")
    fixes = [f"{row.name}: {row.fix}" for row in rows if row.fix and row.status != AVAILABLE]
    if fixes:
        output.text("fix:", *(f"  {fix}" for fix in dict.fromkeys(fixes)))
    return output.OK


def _cells(row: Row) -> tuple[str, ...]:
    priority = "" if row.priority is None else f"{row.priority}" if row.automatic else "by name only"
    place = {"embedded": "embedded", "path": f"HOROVOD_BACKEND_PATH_{row.name.upper()}"}.get(row.origin)
    status = f"{row.status}: {row.detail}" if row.detail else row.status
    devices, provides = ", ".join(row.devices), ", ".join(row.provides)
    return row.name, row.version, place or row.distribution or row.origin, devices, provides, priority, status
