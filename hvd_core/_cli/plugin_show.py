"""``hvd plugin show NAME``: all facts about one backend that need no open device, and what it serves.

The table of what it serves has one cell per collective and element type. The backend's slot ``query`` answers, with the
engine's arguments and without a communicator.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvd_core._cli import output
from hvd_core._cli.plugin_list import config, export, pinned
from hvd_core.backends._messages import option_variable
from hvd_core.backends.errors import BackendDescribeError, BackendError
from hvd_core.types import COLLECTIVES, DTYPES, REDUCTIONS, UNSERVED

if TYPE_CHECKING:
    from hvd_core._config.plugins_toml import PluginsConfig
    from hvd_core.backends._discovery.installed_backend import InstalledBackend


SHOWN = ("allreduce", "reduce", "reducescatter", "broadcast", "allgather", "alltoall", "barrier")
NATIVE, EMULATED, NONE = "NATIVE", "EMULATED", "-"


def served(query: Callable[[int, int, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """One dict per collective, element type and reduction: ``support`` is NATIVE, EMULATED (composed by the engine) or
    "-" (not available), ``score``, ``alignment`` in bytes, ``max_count`` (0: no limit). ``query`` takes ABI numbers.
    """
    rows = []
    for name in SHOWN:
        coll = COLLECTIVES[name]
        for type_name, dtype in DTYPES.items():
            if name == "barrier" and dtype.number:
                continue
            for op, op_name in enumerate(REDUCTIONS if coll.reduces else ("",)):
                answer = query(coll.number, dtype.number, op)
                native = answer["support"] != UNSERVED
                rows.append(
                    {
                        "collective": name,
                        "dtype": "" if name == "barrier" else type_name,
                        "op": op_name,
                        "support": NATIVE if native else _composed(name, type_name, op_name),
                        "score": answer["score"],
                        "alignment": answer["alignment"],
                        "max_count": answer["max_count"],
                    }
                )
    return rows


def _composed(name: str, dtype: str, op: str) -> str:
    """Whether the engine composes an operation that the backend lacks: it does not reduce 8-bit floats, and does not
    average bools."""
    impossible = COLLECTIVES[name].reduces and op not in DTYPES[dtype].reductions
    return NONE if impossible else EMULATED


def cells(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """(columns, lines) of a table with a line per element type. A cell holds the reductions that are NATIVE ("all" if all
    are), "yes" for collectives that only move data, "composed" for EMULATED, and "-"."""
    names = [name for name in SHOWN if name != "barrier"]
    lines = []
    for dtype in DTYPES:
        line = [dtype]
        for name in names:
            here = [row for row in rows if row["collective"] == name and row["dtype"] == dtype]
            line.append(_cell([row for row in here if row["support"] != NONE]))
        lines.append(line)
    return ["type", *names], lines


def _cell(possible: list[dict[str, Any]]) -> str:
    if not possible:
        return NONE
    native = [row["op"] for row in possible if row["support"] == NATIVE]
    if not native:
        return "composed"
    if native == [""]:
        return "yes"
    return "all" if len(native) == len(possible) else ", ".join(native)


# ---- the verb ---------------------------------------------------------------------------------------------------------

_SOURCE = "hvd plugin show"


@dataclass
class Shown:
    """The facts to show. ``facts``: those of the library; None if it could not be loaded, with the reason in
    ``fault``."""

    descriptor: dict[str, Any]
    probe: dict[str, Any]
    facts: dict[str, Any] | None
    options: list[dict[str, Any]]
    served: list[dict[str, Any]]
    fault: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("name", metavar="NAME")
    output.add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print the facts. Returns FINDINGS if the backend cannot work here; the known facts are printed nevertheless."""
    shown = gather(options.name)
    if options.json:
        output.document(vars(shown))
    else:
        _print(shown)
    return output.OK if shown.facts is not None and shown.probe["available"] else output.FINDINGS


def gather(name: str) -> Shown:
    """Collect the facts; a sandbox runs the backend's code.

    Raises BackendNotInstalled, BackendDescribeError.
    """
    from hvd_core._cli.plugin_list import run_sandboxed
    from hvd_core.backends import _discovery
    from hvd_core.backends._selection.usable import limits

    settings = config()
    backend = _discovery.lookup(name, _SOURCE, pinned(name.lower(), settings))
    export(settings, backend.name)
    done = run_sandboxed(lambda send: _gather(backend, settings, send), limits(settings.probe_timeout_s))
    done.relay_output()
    found: dict[str, Any] = {}
    for value in done.values:
        found |= value
    if "error" in found:
        raise BackendDescribeError(found["error"])
    ended = f"horovod: backend '{backend.name}' ({backend.origin}): {done.describe()}" if done.fault else ""
    if "descriptor" not in found:
        raise BackendDescribeError(f"{ended}\n  check: hvd plugin doctor {backend.name}")
    probe = found.setdefault("probe", {"available": False, "reason": done.describe(), "fix": ""})
    assert isinstance(probe, dict)
    rest: dict[str, Any] = {"facts": None, "options": [], "served": [], "fault": ended}
    return Shown(**(rest | found))


def _gather(
    backend: InstalledBackend, settings: PluginsConfig, send: Callable[[dict[str, Any]], None]
) -> None:
    """Send the fields of Shown, each as soon as it is known."""
    from hvd_core.backends._discovery import installed_backend
    from hvd_core.backends._discovery.installed_backend import ABI
    from hvd_core.backends._selection.options import LIBRARY, found_by_probe
    from hvd_core.backends.descriptor import Available

    try:
        _ = backend.devices
    except BackendError as error:
        send({"error": str(error)})
        return
    descriptor = {
        "name": backend.name,
        "origin": backend.origin,
        "version": backend.version,
        "location": backend.candidate.location or "",
        "entry": backend.candidate.entry or "",
        "devices": list(backend.devices),
        "provides": sorted(backend.provides),
        "priority": backend.priority,
        "automatic": backend.automatic,
        "spans_hosts": backend.spans_hosts,
        "launchers": list(backend.launchers),
        "requires": list(backend.descriptor.requires) if backend.descriptor else [],
        "library": "" if backend.descriptor and backend.descriptor.python else str(backend.library),
        "python": (backend.descriptor and backend.descriptor.python) or "",
        "abi": list(backend.descriptor.abi) if backend.descriptor else list(ABI),
        "veto": settings.vetoed_by(backend.name) or "",
    }
    send({"descriptor": descriptor})
    answer = backend.probe(settings.probe_timeout_s)
    if isinstance(answer, Available):
        send({"probe": {"available": True, "detail": answer.detail}})
        found_by_probe(backend.name, answer.library, os.environ)
    else:
        send({"probe": {"available": False, "reason": answer.reason, "fix": answer.fix}})
    try:
        facts = installed_backend.load_backend(backend)
        path = str(backend.path())
        rows = served_by(backend.name, path, facts)
    except BackendError as error:
        send({"fault": str(error)})
        return
    descriptor["library"] = descriptor["library"] and path
    schema = list(facts["options"])
    if (
        all(option["name"] != "library" for option in schema)
        and option_variable(backend.name, "library") in os.environ
    ):
        schema.append(LIBRARY)  # every backend has this option; without a vendor's library it has no effect
    values = [option | _value(backend.name, option) for option in schema]
    send({"descriptor": descriptor, "facts": facts, "options": values, "served": rows})


def served_by(name: str, path: str, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The collectives that the loaded library serves, from its ``query``; [] if it has no communicator table."""
    from hvd_core import _core

    if "comm" not in facts["slots"]:
        return []
    return served(lambda coll, dtype, op: _core.query_backend(name, path, coll, dtype, op))


def _value(name: str, option: dict[str, Any]) -> dict[str, str]:
    """The option's value in this environment, into which plugins.toml was exported, and its source."""
    from hvd_core.backends._selection.options import origin

    variable = option_variable(name, option["name"])
    if variable not in os.environ:
        return {"variable": variable, "value": option["fallback"], "source": "default"}
    return {"variable": variable, "value": os.environ[variable], "source": origin(variable, os.environ)}


def _print(shown: Shown) -> None:
    d, facts = shown.descriptor, shown.facts
    probe = shown.probe
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
        output.text("", shown.fault)
        return
    for table, slots in facts["slots"].items():
        have = [slot for slot, filled in slots.items() if filled]
        lack = [slot for slot, filled in slots.items() if not filled]
        output.text("", f"{table} table, {len(have)} of {len(slots)} slots: {', '.join(have)}")
        if lack:
            output.text(f"  without: {', '.join(lack)}")
    if shown.options:
        output.text("")
        rows = [(o["name"], o["type"], o["value"], o["source"], o["range"], o["doc"]) for o in shown.options]
        output.table(("option", "type", "value", "from", "range", "what for"), rows)
    if shown.served:
        output.text("")
        output.table(*cells(shown.served))
        output.text(
            "composed, and reductions that are not listed: composed by hvd-core (EMULATED); -: not available"
        )
