"""Takes one backend through its phases, for the commands that examine backends. A sandbox runs the plugin's code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvd_core._base import sandbox
from hvd_core.backends import _phases
from hvd_core.backends._messages import of_exception, option_variable
from hvd_core.backends._phases import DESCRIBE, LOAD, PROBE
from hvd_core.backends.errors import BackendError
from hvd_core.types import COLLECTIVES, DTYPES, REDUCTIONS, UNSERVED

if TYPE_CHECKING:
    from hvd_core._config.plugins_toml import PluginsConfig
    from hvd_core.backends._discovery.installed_backend import InstalledBackend

FIND_LIBRARY = "find the library"
"""A step in place of LOAD: whether the library is there."""
SHOWN = ("allreduce", "reduce", "reducescatter", "broadcast", "allgather", "alltoall", "barrier")
NATIVE, EMULATED, NONE = "NATIVE", "EMULATED", "-"
Facts = dict[str, Any]


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


@dataclass
class Examination:
    """``found``: phase -> its facts, of the phases that have finished. ``error``: the message of the phase that raised a
    BackendError. ``report``: of the sandbox; its ``fault`` says whether the plugin has ended the process."""

    found: dict[str, Facts]
    error: str
    report: sandbox.Report


def examine(
    backend: InstalledBackend, settings: PluginsConfig, steps: Sequence[str], until_unavailable: bool = False
) -> Examination:
    """Take a backend through ``steps`` (DESCRIBE, PROBE, FIND_LIBRARY, LOAD), up to the first that fails;
    ``until_unavailable``: or up to a probe that says no."""
    from hvd_core.backends._selection.usable import limits

    def work(send: Callable[[object], None]) -> None:
        for step in steps:
            try:
                facts = _STEPS[step](backend, settings)
            except BackendError as error:
                send({"error": str(error)})
                return
            send({step: facts})
            if until_unavailable and not facts.get("available", True):
                return

    report = run_sandboxed(work, limits(settings.probe_timeout_s))
    found: dict[str, Any] = {}
    for value in report.values:
        found |= value
    return Examination(found, found.pop("error", ""), report)


def _describe(backend: InstalledBackend, settings: PluginsConfig) -> Facts:
    from hvd_core.backends._discovery.installed_backend import ABI

    descriptor = backend.descriptor
    return {
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
        "requires": list(descriptor.requires) if descriptor else [],
        "library": backend.library,
        "python": (descriptor and descriptor.python) or "",
        "abi": list(descriptor.abi if descriptor else ABI),
        "veto": settings.vetoed_by(backend.name) or "",
    }


def _probe(backend: InstalledBackend, settings: PluginsConfig) -> Facts:
    from hvd_core.backends._selection.options import found_by_probe
    from hvd_core.backends.descriptor import Available

    answer = backend.probe(settings.probe_timeout_s)
    if not isinstance(answer, Available):
        return {"available": False, "reason": answer.reason, "fix": answer.fix}
    found_by_probe(backend.name, answer.library, os.environ)
    return {"available": True, "detail": answer.detail}


def _find_library(backend: InstalledBackend, settings: PluginsConfig) -> Facts:
    # A class in Python is not imported here, to save time.
    return {} if backend.descriptor and backend.descriptor.python else {"path": str(backend.path())}


def _load(backend: InstalledBackend, settings: PluginsConfig) -> Facts:
    from hvd_core.backends._discovery import installed_backend
    from hvd_core.backends._selection.options import LIBRARY

    facts = installed_backend.load_backend(backend)
    schema = list(facts["options"])
    if all(o["name"] != "library" for o in schema) and option_variable(backend.name, "library") in os.environ:
        schema.append(LIBRARY)  # every backend has this option; without a vendor's library it has no effect
    path = str(backend.path())
    return {
        "path": path,
        "facts": facts,
        "options": [option | _value(backend.name, option) for option in schema],
        "served": _served(backend.name, path) if "comm" in facts["slots"] else [],
    }


_STEPS: dict[str, Callable[[InstalledBackend, PluginsConfig], Facts]] = {
    DESCRIBE: _describe,
    PROBE: _probe,
    FIND_LIBRARY: _find_library,
    LOAD: _load,
}


def _value(name: str, option: Facts) -> dict[str, str]:
    """The option's value in this environment, into which plugins.toml was exported, and its source."""
    from hvd_core.backends._selection.options import origin

    variable = option_variable(name, option["name"])
    if variable not in os.environ:
        return {"variable": variable, "value": option["fallback"], "source": "default"}
    return {"variable": variable, "value": os.environ[variable], "source": origin(variable, os.environ)}


def _served(name: str, path: str) -> list[Facts]:
    """What the slot ``query`` answers: one dict per collective, element type and reduction. ``support``: NATIVE,
    EMULATED (composed by the engine) or "-" (not available: the engine does not reduce 8-bit floats, and does not average
    bools); ``alignment`` in bytes; ``max_count``: 0 for no limit."""
    from hvd_core import _core

    rows = []
    for collective in SHOWN:
        reduces = COLLECTIVES[collective].reduces
        for type_name, dtype in DTYPES.items():
            if collective == "barrier" and dtype.number:
                continue
            for number, op in enumerate(REDUCTIONS if reduces else ("",)):
                answer = _core.query_backend(name, path, COLLECTIVES[collective].number, dtype.number, number)
                composed = NONE if reduces and op not in dtype.reductions else EMULATED
                rows.append(
                    {
                        "collective": collective,
                        "dtype": "" if collective == "barrier" else type_name,
                        "op": op,
                        "support": composed if answer["support"] == UNSERVED else NATIVE,
                        **{key: answer[key] for key in ("score", "alignment", "max_count")},
                    }
                )
    return rows
