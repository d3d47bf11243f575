"""``hvd plugin list``: every backend, its origin, and whether it works on this machine."""

from __future__ import annotations

import argparse
import os

from hvd_core._cli import codes, output
from hvd_core._cli.survey import (
    AVAILABLE,
    BROKEN,
    DUPLICATE,
    IGNORED,
    UNAVAILABLE,
    VETOED,
    Row,
    config,
    survey,
)

_STYLES = {BROKEN: "red", DUPLICATE: "red", UNAVAILABLE: "yellow", VETOED: "yellow", IGNORED: "dim"}


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
        return codes.OK
    output.table(
        ("name", "version", "from", "devices", "provides", "priority", "status"), map(_cells, rows), _STYLES
    )
    if settings.policy():
        output.text(f"site policy: {settings.policy()}")
    fixes = [f"{row.name}: {row.fix}" for row in rows if row.fix and row.status != AVAILABLE]
    if fixes:
        output.text("fix:", *(f"  {fix}" for fix in dict.fromkeys(fixes)))
    return codes.OK


def _cells(row: Row) -> tuple[str, ...]:
    priority = "" if row.priority is None else f"{row.priority}" if row.automatic else "by name only"
    place = row.distribution or {"path": f"HOROVOD_BACKEND_PATH_{row.name.upper()}"}.get(
        row.origin, row.origin
    )
    status = f"{row.status}: {row.detail}" if row.detail else row.status
    place = "embedded" if row.origin == "embedded" else place
    return row.name, row.version, place, ", ".join(row.devices), ", ".join(row.provides), priority, status
