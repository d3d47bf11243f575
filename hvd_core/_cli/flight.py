"""``hvd flight``: shows what the flight recorder has saved of a job that failed."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from hvd_core import flight_records
from hvd_core._cli import output
from hvd_core._observe.settings import flight_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="a file, or the folder of a job (the newest job that failed here)",
    )
    parser.add_argument("--last", type=int, metavar="N", default=50, help="events of each rank (50); 0: all")
    output.add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Show the rings of a file, of a job's folder, or of the newest job. Raises OSError, ValueError."""
    rings = _rings(Path(options.path) if options.path else None)
    if options.json:
        output.document(
            [
                {
                    **{k: v for k, v in vars(ring).items() if k != "events"},
                    "events": [vars(e) for e in ring.events],
                }
                for ring in rings
            ]
        )
        return output.OK
    for ring in rings:
        _show(ring, options.last)
    return output.OK


def _rings(path: Path | None) -> list[flight_records.Ring]:
    if path is None:
        found = flight_records.jobs(flight_folder())
        if not found:
            raise ValueError(f"no flight recorder was saved below {flight_folder()}: no job has failed there")
        path = found[0]
    if path.is_dir():
        rings = flight_records.load_job(path)
        if not rings:
            raise ValueError(f"{path} has no files rank-N.flight; name the folder of one job")
        return rings
    return [flight_records.load(path)]


def _show(ring: flight_records.Ring, last: int) -> None:
    print(
        f"rank {ring.rank} of {ring.size}, pid {ring.pid} on {ring.host}, job {ring.job}: {ring.written} events"
    )
    pending = ring.pending()
    if pending:
        print(
            f"  not done: {', '.join(_name(event) for event in pending[:12])}{' ...' if len(pending) > 12 else ''}"
        )
    for event in ring.events[-last:] if last else ring.events:
        print(f"  {_time(ring, event)}  {flight_records.describe(event)}")


def _name(event: flight_records.Event) -> str:
    return f"'{event.name}.{event.b}'" if event.b else f"'{event.name}'"


def _time(ring: flight_records.Ring, event: flight_records.Event) -> str:
    if ring.wall_offset is None:
        return f"{event.time / 1e9:.6f}"
    return datetime.fromtimestamp((event.time + ring.wall_offset) / 1e9).strftime("%H:%M:%S.%f")
