"""Takes a backend through its phases - find, describe, probe, load - when the choice asks for it.

One UsableBackends per choice keeps the result for each backend. A wheel's backend is imported, probed and loaded only
if a rule names it, or if the automatic choice needs it according to its wheel's static description. The user has not
named the latter, so it must not be able to end, hang or change this process: a process of its own goes through the
phases first. What that prints is not shown; ``hvd plugin doctor`` shows it. Called on the thread that chooses.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from glob import glob
from itertools import groupby

from hvd_core._base import sandbox
from hvd_core._config.plugins_toml import PluginsConfig, load
from hvd_core._config.selection_rules import HOST, VARIABLE
from hvd_core._config.settings import encryption_wanted, read_environment
from hvd_core.backends import _discovery, _messages, _phases, errors
from hvd_core.backends._candidate import SUFFIX, WHEEL, Candidate, StaticDescription
from hvd_core.backends._discovery import entry_points, registry
from hvd_core.backends._discovery.installed_backend import InstalledBackend, load_backend
from hvd_core.backends._messages import of_exception, reason
from hvd_core.backends._selection import options
from hvd_core.backends._selection.plan import AUTOMATIC, Usable
from hvd_core.backends.descriptor import Unavailable
from hvd_core.backends.errors import BackendError, BackendUnavailable
from hvd_core.types import COLLECTIVES, DTYPES, REDUCTIONS

# Of the start timeout, because the other ranks wait for this one.
_SHARE = 0.5
_OWN_WORK_S = 60.0  # between phases: an interpreter starts, on a busy machine
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from hvd_core.backends._selection.usable import run_trial; run_trial(sys.argv)"
)
_passed: set[Candidate] = set()


def limits(probe_timeout_s: float) -> dict[str, float]:
    """Seconds that each phase may take, for ``[probe] timeout_s``. The probe has a limit of its own in its process, and
    this one is for a probe that stops its whole process."""
    return {
        _phases.DESCRIBE: 2 * probe_timeout_s,
        _phases.PROBE: probe_timeout_s + 5,
        _phases.LOAD: 10 * probe_timeout_s,
    }


def try_out(candidate: Candidate, probe_timeout_s: float, environ: Mapping[str, str]) -> None:
    """Try the backend in a process of its own, once in this process's life.

    Raises the BackendError of the phase that fails; BackendUnavailable if the process ends or times out.
    """
    if candidate in _passed:
        return
    try:
        report = sandbox.run_reporting(
            [sys.executable or "python3", "-c", _PROGRAM, json.dumps(sys.path), candidate.name],
            limits(probe_timeout_s),
            between_s=_OWN_WORK_S,
            total_s=_SHARE * read_environment().start_timeout_s,
            env={**environ, entry_points.VARIABLE: entry_points.encode([candidate])},
        )
    except OSError as error:
        raise BackendUnavailable(
            f"horovod: backend '{candidate.name}' cannot be tried: no process can be started: {error}"
        ) from error
    for value in report.values:  # of hvd-core, or of a plugin that has written to the pipe
        kind = getattr(errors, str(value.get("error")), None) if isinstance(value, dict) else None
        if isinstance(kind, type) and issubclass(kind, BackendError):
            raise kind(str(value.get("text", "")))
    if report.fault:
        raise BackendUnavailable(
            f"horovod: backend '{candidate.name}' ({candidate.describe_origin()}) is not used: {report.describe()}.\n"
            f"  check: hvd plugin doctor {candidate.name}"
        )
    _passed.add(candidate)


def run_trial(arguments: Sequence[str]) -> None:
    """The process of a trial: takes the backend through its phases and reports them. Its only thread calls this.

    Args:
        arguments: ``sys.argv``.
    """
    name, reporter = arguments[2], sandbox.Reporter.attach(arguments)
    try:
        _phases.listen(reporter.enter)
        score(UsableBackends(os.environ, load(os.environ), is_trial=True).usable(name, AUTOMATIC))
    except BackendError as error:
        reporter.send({"error": type(error).__name__, "text": str(error)})
    except BaseException as error:  # a plugin may raise SystemExit
        reporter.failed(f"it raised {of_exception(error)}")
    reporter.done()
    os._exit(0)  # without exit handlers: a plugin's may crash or hang too


class BackendVetoed(BackendUnavailable):
    """The ``allow`` or ``deny`` list of the site's configuration file forbids the backend."""


class UsableBackends:
    """The backends of this installation that the site's policy allows. ``types``: the device types that the job's rules
    name, whose backends are considered whether or not the devices' files exist. ``is_trial``: this process runs the
    trial of a backend."""

    def __init__(
        self,
        environ: MutableMapping[str, str],
        config: PluginsConfig,
        types: frozenset[str] = frozenset(),
        is_trial: bool = False,
    ) -> None:
        self.environ, self.config, self.types, self._is_trial = environ, config, types, is_trial
        self.unusable: dict[str, BackendError] = {}
        """Name -> error of the backends that the last search of for_devices() skipped."""
        self.unused_between = ""
        """Why of_launcher() skipped a backend; "" if it did not."""
        self._known: dict[str, Usable | BackendError] = {}
        self._automatic: dict[str, list[Usable]] = {}

    def usable(self, name: str, source: str, alone: bool = False) -> Usable:
        """The backend that ``source`` names, ready to be opened. ``alone``: whether ``source`` names no other backend.

        Raises the BackendError of the phase that fails; BackendVetoed if the site forbids the backend.
        """
        if name not in self._known:
            try:
                self._known[name] = self._load(self._find(name, source), source, alone)
            except BackendError as error:
                self._known[name] = error
        found = self._known[name]
        if isinstance(found, BackendError):
            raise found
        return found

    def embedded(self) -> list[Usable]:
        """The allowed backends of hvd-core itself, in the order of the automatic choice."""
        allowed = [b for b in registry.embedded() if b.automatic and self.config.vetoed_by(b.name) is None]
        return [self.usable(b.name, AUTOMATIC) for b in allowed]

    def for_devices(self, device: str) -> list[Usable]:
        """The backends that are chosen automatically for the memory of a device type, the best first.

        The wheels' static descriptions tell which backends can serve it on this machine. Such a backend is tried, and
        then imported, probed and loaded, only if no backend of higher priority serves the type already. ``unusable``
        gets the reasons against the others.
        """
        if device not in self._automatic:
            chosen = self._automatic[device] = []
            self.unusable.clear()
            found = sorted(self._candidates_for(device), key=lambda c: (-_described(c).priority, c.name))
            for _, same in groupby(found, key=lambda c: _described(c).priority):
                needed = [c.name for c in same if not _is_served(device, _described(c), chosen)]
                chosen += self._scored(needed)
        return self._automatic[device]

    def device_types(self) -> list[str]:
        """The device types of this machine that the automatic choice considers a wheel for, by the static
        descriptions."""
        descriptions = (c.static for c in self._candidates() if c.static and not c.static.launchers)
        return list(dict.fromkeys(d for s in descriptions if _has_files(s) for d in s.devices if d != HOST))

    def of_launcher(self, launcher: str) -> list[Usable]:
        """The backends that may be chosen automatically between hosts because they belong to the jobs of ``launcher``,
        the best first. Tries, and then imports, probes and loads, only wheels whose static description names the
        launcher."""
        found = []
        for candidate in self._candidates():
            if candidate.static is None or launcher not in candidate.static.launchers:
                continue
            try:
                found.append(self.usable(candidate.name, AUTOMATIC))
            except BackendError as error:
                self.unused_between = f"{launcher} started this job, but {reason(error)}"
        return sorted((b for b in found if b.automatic), key=lambda b: (-b.priority, b.name))

    def _candidates(self) -> list[Candidate]:
        """The wheels that the automatic choice may consider, one for each name. ``unusable`` gets the reason why another
        one may not be used. Imports nothing."""
        found = []
        for name in dict.fromkeys(c.name for c in _discovery.wheels()):
            try:
                self._check_policy(name, AUTOMATIC)
                candidate = _discovery.find(name, "", self._pin(name))
            except BackendError as error:
                self.unusable[name] = error
                continue
            if candidate.origin == WHEEL:
                found.append(candidate)
        return found

    def _candidates_for(self, device: str) -> list[Candidate]:
        """The wheels that the automatic choice considers for a device type. ``unusable`` gets the reason why it does not
        consider another one."""
        found = []
        for candidate in self._candidates():
            static = candidate.static
            why = self._why_not(candidate, device)
            if why:
                self.unusable[candidate.name] = BackendUnavailable(
                    f"horovod: backend '{candidate.name}' ({candidate.describe_origin()}) {why}"
                )
            elif static and device in static.devices and not static.launchers:
                found.append(candidate)
        return found

    def _why_not(self, candidate: Candidate, device: str) -> str:
        """Why the automatic choice does not consider a wheel that may serve a device type; "" if it does, or if the wheel
        does not serve the type."""
        static, file = candidate.static, f"{candidate.name}{SUFFIX}"
        if static is None:
            known = any(p.name == candidate.name and p.kind == "description" for p in _discovery.problems())
            why = "its description cannot be read" if known else "its wheel does not describe it"
            return f"is used only if it is named, because {why} ({file})"
        if device not in static.devices or static.launchers or device in self.types or _has_files(static):
            return ""
        if not static.device_files:
            return f"is used only if it is named, because its {file} names no device_files"
        files = ", ".join(static.device_files)
        return f"serves {device}, and this machine has none of the files of such devices: {files}"

    def _scored(self, names: list[str]) -> list[Usable]:
        """Those of some backends of equal priority that can be used, the one with the highest score first."""
        found: list[tuple[int, str, Usable]] = []
        for name in names:
            try:
                usable = self.usable(name, AUTOMATIC)
                if usable.automatic:
                    found.append((-score(usable), name, usable))  # calls into the backend, which may fail
            except BackendError as error:
                self.unusable[name] = error
        return [usable for _, _, usable in sorted(found, key=lambda item: item[:2])]

    def names(self) -> list[str]:
        """The names of all installed backends."""
        return [b.name for b in _discovery.installed()]

    def policy(self) -> str:
        """The site's file with its allow and deny lists, for messages; "" if the site has no such file."""
        return self.config.policy()

    def describe_installed(self) -> str:
        """``shm, tcp (embedded), x (hvd-backend-x 0.3.0)``, for messages."""
        return _messages.list_installed(b.candidate for b in _discovery.installed())

    def _pin(self, name: str) -> str | None:
        pin = self.config.backend(name).distribution
        return pin.value if pin else None

    def _find(self, name: str, source: str) -> InstalledBackend:
        known, policy = self.config.wheels.get(name), self.config.policy()
        backend = _discovery.lookup(name, source, self._pin(name), policy, known)
        self._check_policy(name, source)
        return backend

    def _check_policy(self, name: str, source: str) -> None:
        veto = self.config.vetoed_by(name)
        if veto is not None:
            asked = "" if source == AUTOMATIC else f" (from {source})"
            raise BackendVetoed(
                f"horovod: backend '{name}'{asked} may not be used here: {veto}.\n"
                "  fix: name an allowed backend, or ask the administrator of that file; no other setting lifts it\n"
                f"  installed: {self.describe_installed()}"
            )

    def _load(self, backend: InstalledBackend, source: str, alone: bool) -> Usable:
        settings = self.config.backend(backend.name)
        options.export(backend.name, settings, self.environ)
        if source == AUTOMATIC and not self._is_trial and backend.candidate.origin == WHEEL:
            try_out(backend.candidate, self.config.probe_timeout_s, self.environ)
        answer = backend.probe(self.config.probe_timeout_s)
        other = registry.embedded()[0].name
        if isinstance(answer, Unavailable):
            text = _messages.unavailable(backend.name, answer.reason, answer.fix, alone, other)
            # A user knows the variable they have set; a file or an argument may come from another person.
            named_by = "" if source in (VARIABLE, AUTOMATIC) else f"\n  named by: {source}"
            raise BackendUnavailable(text + named_by)
        options.found_by_probe(backend.name, answer.library, self.environ)
        facts = load_backend(backend, alone, other)
        spans_hosts = backend.spans_hosts and "ONE_HOST" not in facts["caps"]
        kept_within = ""
        if spans_hosts and not backend.encrypts and encryption_wanted(self.environ):
            spans_hosts = False
            kept_within = "does not encrypt what it sends to other hosts, as HOROVOD_TLS=1 asks"
        return Usable(
            name=backend.name,
            path=str(backend.path()),
            origin=backend.origin,
            version=facts["version"],
            vendor_lib=facts["vendor_lib"],
            abi=tuple(facts["abi"]),
            serves=frozenset(facts["device_types"]),
            table=facts["device_type"] or None,
            spans_hosts=spans_hosts,
            kept_within=kept_within,
            automatic=backend.automatic,
            priority=backend.priority,
            launchers=backend.launchers,
            options=tuple(facts["options"]),
        )


def _described(candidate: Candidate) -> StaticDescription:
    assert candidate.static is not None
    return candidate.static


def _has_files(static: StaticDescription) -> bool:
    """Whether this machine has a file of the wheel's devices."""
    return any(glob(pattern) for pattern in static.device_files)


def _is_served(device: str, wanted: StaticDescription, chosen: list[Usable]) -> bool:
    """Whether the backends chosen so far serve all that a wheel could add for a device type."""
    opened = any(b.table == device for b in chosen)
    moved = any(device in b.serves and b.spans_hosts for b in chosen)
    return (opened or "device" not in wanted.provides) and (moved or "comm" not in wanted.provides)


def score(backend: Usable) -> int:
    """The backend's own score for its most common operation, which decides between backends of equal priority."""
    from hvd_core._core import query_backend

    if not backend.serves:
        return 0
    question = COLLECTIVES["allreduce"].number, DTYPES["float32"].number, REDUCTIONS["sum"].number
    with _phases.running(backend.name, _phases.LOAD):
        return int(query_backend(*backend.library, *question)["score"])
