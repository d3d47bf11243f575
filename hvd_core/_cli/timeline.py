"""``hvd timeline merge`` and ``hvd timeline summarize``."""

from __future__ import annotations

import argparse
import glob
from dataclasses import asdict

from hvd_core._cli import codes, output
from hvd_core._observe import timeline_files


def run(options: argparse.Namespace) -> int:
    """Do what the verb says. Raises OSError, ValueError."""
    return _merge(options) if options.verb == "merge" else _summarize(options)


def _merge(options: argparse.Namespace) -> int:
    paths = [path for pattern in options.files for path in sorted(glob.glob(pattern)) or [pattern]]
    count = timeline_files.merge(paths, options.output)
    if options.json:
        output.document({"files": paths, "output": options.output, "events": count})
    else:
        output.text(f"{options.output}: {count} events of {len(paths)} files")
    return codes.OK


def _summarize(options: argparse.Namespace) -> int:
    made = timeline_files.summarize(timeline_files.load(options.file))
    if options.json:
        stragglers = [{**asdict(s), "median_behind": s.median_behind} for s in made.stragglers]
        output.document({**asdict(made), "stragglers": stragglers})
        return codes.OK
    of = f" of {made.size}" if made.size else ""
    output.text(f"{options.file}: rank {made.rank}{of}, {made.span / 1e6:.3f} s")
    rows = [
        ("operations were carried out", made.communication),
        ("callers waited (exposed communication)", made.exposed),
        ("carried out while no caller waited (overlap)", made.hidden),
    ]
    output.table(
        ("time in which", "ms", "share"),
        [(what, _ms(took), f"{took / made.span:.1%}" if made.span else "") for what, took in rows],
    )
    if made.stragglers:
        output.text("", "The last rank to be ready:")
        output.table(
            ("rank", "times", "behind the one before, median us"),
            [(str(s.rank), str(s.last), f"{s.median_behind:.0f}") for s in made.stragglers],
        )
    output.text("", f"The {min(options.top, len(made.tensors))} tensors that took the longest:")
    output.table(
        ("tensor", "operations", "carried out, ms", "negotiated, ms", "MB"),
        [
            (t.name, str(t.operations), _ms(t.running), _ms(t.negotiating), f"{t.bytes / 1e6:.3f}")
            for t in made.tensors[: options.top]
        ],
    )
    if made.activities:
        output.text("", "Activities, summed over tensors:")
        by_time = sorted(made.activities.items(), key=lambda item: -item[1])
        output.table(("activity", "ms"), [(name, _ms(took)) for name, took in by_time])
    if made.lost:
        output.text(
            "", f"{made.lost} events are missing: the engine made them faster than they could be written"
        )
    return codes.OK


def _ms(micros: float) -> str:
    return f"{micros / 1e3:.3f}"
