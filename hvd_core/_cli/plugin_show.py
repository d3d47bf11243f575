"""``hvd plugin show NAME``: all facts about one backend that need no open device, and what it serves."""

from __future__ import annotations

import argparse
from typing import Any

from hvd_core._cli import output
from hvd_core._cli.examination import NATIVE, NONE, SHOWN, config, examine, export, pinned
from hvd_core.backends._phases import DESCRIBE, LOAD, PROBE
from hvd_core.backends.errors import BackendDescribeError
from hvd_core.types import DTYPES

_SOURCE = "hvd plugin show"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("name", metavar="NAME")
    output.add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print the facts. Returns FINDINGS if the backend cannot work here; the known facts are printed nevertheless."""
    shown = gather(options.name)
    if options.json:
        output.document(shown)
    else:
        _print(shown)
    return output.OK if shown["facts"] is not None and shown["probe"]["available"] else output.FINDINGS


def gather(name: str) -> dict[str, Any]:
    """The descriptor, the probe's answer, and ``facts``, ``options`` and ``served`` of the library; ``facts`` is None if
    it could not be loaded, with the reason in ``fault``.

    Raises BackendNotInstalled, BackendDescribeError.
    """
    from hvd_core.backends import _discovery

    settings = config()
    backend = _discovery.lookup(name, _SOURCE, pinned(name.lower(), settings))
    export(settings, backend.name)
    done = examine(backend, settings, (DESCRIBE, PROBE, LOAD))
    done.report.relay_output()
    fault = done.error
    if done.report.fault:
        fault = f"horovod: backend '{backend.name}' ({backend.origin}): {done.report.describe()}"
    if DESCRIBE not in done.found:
        check = "" if done.error else f"\n  check: hvd plugin doctor {backend.name}"
        raise BackendDescribeError(fault + check)
    descriptor = done.found[DESCRIBE]
    probe = done.found.get(PROBE, {"available": False, "reason": done.report.describe(), "fix": ""})
    loaded = done.found.get(LOAD, {"facts": None, "options": [], "served": []})
    path = loaded.pop("path", descriptor["library"])
    descriptor["library"] = "" if descriptor["python"] else path
    return {"descriptor": descriptor, "probe": probe, **loaded, "fault": fault}


def _print(shown: dict[str, Any]) -> None:
    d, facts, probe = shown["descriptor"], shown["facts"], shown["probe"]
    able = f"available {probe['detail']}".strip() if probe["available"] else f"unavailable: {probe['reason']}"
    lines = [
        ("name", d["name"]),
        ("from", f"{d['origin']}  {d['location']}".strip()),
        ("entry point", d["entry"]),
        ("devices", ", ".join(d["devices"])),
        ("provides", ", ".join(d["provides"])),
        ("chosen automatically", f"priority {d['priority']}" if d["automatic"] else "never"),
        ("reaches other hosts", "yes" if d["spans_hosts"] else "no"),
        ("belongs to jobs of", ", ".join(d["launchers"])),
        ("requires", ", ".join(d["requires"])),
        ("library", d["library"] or d["python"]),
        ("site policy", d["veto"]),
        ("here", able),
        ("fix", probe.get("fix", "")),
    ]
    if facts is not None:
        lines += [
            ("version", facts["version"]),
            ("vendor library", facts["vendor_lib"]),
            ("ABI", ".".join(map(str, facts["abi"]))),
            ("tag in timelines", facts["tag"]),
            ("capabilities", ", ".join(facts["caps"])),
        ]
    output.table(("backend", ""), [line for line in lines if line[1]])
    if facts is None:
        output.text("", shown["fault"])
        return
    for table, slots in facts["slots"].items():
        have = [slot for slot, filled in slots.items() if filled]
        lack = [slot for slot, filled in slots.items() if not filled]
        output.text("", f"{table} table, {len(have)} of {len(slots)} slots: {', '.join(have)}")
        if lack:
            output.text(f"  without: {', '.join(lack)}")
    if shown["options"]:
        keys = ("name", "type", "value", "source", "range", "doc")
        output.text("")
        rows = [[option[key] for key in keys] for option in shown["options"]]
        output.table(("option", "type", "value", "from", "range", "what for"), rows)
    if shown["served"]:
        collectives = [name for name in SHOWN if name != "barrier"]
        output.text("")
        output.table(
            ("type", *collectives),
            [[dtype, *(_cell(shown["served"], name, dtype) for name in collectives)] for dtype in DTYPES],
        )
        output.text(
            "composed, and reductions that are not listed: composed by hvd-core (EMULATED); -: not available"
        )


def _cell(served: list[dict[str, Any]], collective: str, dtype: str) -> str:
    """The reductions that are NATIVE ("all" if all are), "yes" for collectives that only move data, "composed" for
    EMULATED, or "-"."""
    here = [row for row in served if (row["collective"], row["dtype"]) == (collective, dtype)]
    possible = [row for row in here if row["support"] != NONE]
    native = [row["op"] for row in possible if row["support"] == NATIVE]
    if not native:
        return "composed" if possible else NONE
    if native == [""]:
        return "yes"
    return "all" if len(native) == len(possible) else ", ".join(native)
