"""The rules that name backends for device types and operations, in levels; the first level with a rule that applies wins.

Pure data, read from texts and variables; this module knows no backend. A rule holds an ordered list of names for one
operation on one device type, for all operations on one device type, or for everything (a broad rule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_core._config.hints import did_you_mean

OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")
HOST = "cpu"
"""The device type of host memory."""
NO_BARRIER = f"a barrier moves no tensors and always uses host memory; name its backend with {HOST}.barrier."
ACCELERATORS = "*"
"""Stands for every device type except host memory; used for the older variables HOROVOD_GPU_*."""
ARGUMENT, VARIABLE = "init(backend=...)", "HOROVOD_BACKEND"
OF_SET = "ProcessSet(backend=...)"

_LEGACY_OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


@dataclass(frozen=True)
class Rule:
    """``names`` in order of preference, for ``operation`` (None: all) on ``device`` (None: any; ACCELERATORS: any
    except host memory). ``source``: the rule's origin in messages: a variable, an argument, or file:line."""

    device: str | None
    operation: str | None
    names: tuple[str, ...]
    source: str

    @property
    def broad(self) -> bool:
        """Whether the rule names no device type."""
        return self.device in (None, ACCELERATORS)


@dataclass(frozen=True)
class Level:
    """Rules of one origin. ``soft``: a backend that cannot be used is skipped with one warning; for the older variables,
    because images still export them."""

    source: str
    rules: tuple[Rule, ...]
    soft: bool = False

    def rules_for(self, device: str, operation: str | None) -> list[Rule]:
        """The rules that apply to an operation on a device type, the most specific first. Operation None: only the rules
        for all operations."""
        found = []
        for rule in self.rules:
            broad = rule.device is None or (rule.device == ACCELERATORS and device != HOST)
            if (broad or rule.device == device) and rule.operation in (None, operation):
                found.append(rule)
        return sorted(found, key=lambda r: (r.device != device, r.operation is None))


def parse(text: str | Sequence[str], source: str) -> tuple[Rule, ...]:
    """The rules of a text in HOROVOD_BACKEND's grammar, or of a list of its entries.

    Entries: NAME, DEVICE=NAME, DEVICE.OPERATION=NAME; several entries for one key are in order of preference. Raises
    ValueError for an entry of another form. ``source``: the rules' origin, for messages.
    """
    items = text.split(",") if isinstance(text, str) else list(text)
    names: dict[tuple[str | None, str | None], list[str]] = {}
    for item in items:
        key, equals, name = item.strip().lower().rpartition("=")
        device, dot, operation = key.strip().partition(".")
        name, device, operation = name.strip(), device.strip(), operation.strip()
        if not name or "=" in key or (equals and not device) or (dot and not operation):
            shown = text if isinstance(text, str) else ",".join(text)
            raise ValueError(
                f"horovod: {source} = '{shown}' cannot be read: '{item.strip()}' is not an entry.\n"
                "  entries: NAME, DEVICE=NAME or DEVICE.OPERATION=NAME, separated by commas; "
                "such as shm or cpu=shm"
            )
        if operation == "operations":
            operation = ""
        if operation and operation not in OPERATIONS:
            raise ValueError(
                f"horovod: {source}: '{operation}' is not an operation."
                f"{did_you_mean(operation, OPERATIONS)}\n"
                f"  operations: {', '.join(OPERATIONS)}"
            )
        if operation == "barrier" and device != HOST:
            raise ValueError(f"horovod: {source}: '{key.strip()}': {NO_BARRIER}")
        names.setdefault((device or None, operation or None), []).append(name)
    return tuple(Rule(device, operation, tuple(n), source) for (device, operation), n in names.items())


def legacy_variables() -> tuple[str, ...]:
    """The names of the older variables that name backends."""
    return tuple(
        f"HOROVOD_{kind}_{what.upper()}"
        for kind in ("GPU", "CPU")
        for what in (*_LEGACY_OPERATIONS, "operations")
    )


def legacy(environ: Mapping[str, str]) -> Level:
    """The rules of the older variables. The source of each rule is its variable."""
    rules = []
    for variable in legacy_variables():
        name = environ.get(variable, "").strip().lower()
        if not name:
            continue
        _, kind, what = variable.split("_")
        device = HOST if kind == "CPU" else ACCELERATORS
        rules.append(Rule(device, None if what == "OPERATIONS" else what.lower(), (name,), variable))
    return Level("older variables", tuple(rules), soft=True)


def ladder(
    environ: Mapping[str, str],
    argument: str | Sequence[str] | None,
    files: Sequence[Level] = (),
    called: str = ARGUMENT,
) -> tuple[Level, ...]:
    """All levels that have rules, the strongest first. ``argument``: the one of the program, named ``called`` in
    messages. ``files``: the levels of the configuration files, in order.

    Below the first level with a rule for everything, only rules that name a device type count.
    """
    levels = [
        Level(called, parse(argument, called) if argument else ()),
        Level(VARIABLE, parse(environ[VARIABLE], VARIABLE) if environ.get(VARIABLE, "").strip() else ()),
        legacy(environ),
        *files,
    ]
    kept, decided = [], False
    for level in levels:
        rules = tuple(r for r in level.rules if not (decided and r.broad))
        if rules:
            kept.append(Level(level.source, rules, level.soft))
        decided = decided or any(r.device is None for r in rules)
    return tuple(kept)
