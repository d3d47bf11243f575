"""Which backends there are, and what they say about themselves: the phases discover, describe and probe.

Finding names imports nothing: the embedded ones stand in a table (registry.py), wheels announce themselves through the
entry-point group ``hvd_core.backends``. A job's ranks take what their launcher found (HOROVOD_BACKEND_SPEC). Any thread.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable

from hvd_core.backends import messages, registry, spec
from hvd_core.backends.candidate import GROUP, WHEEL, Candidate, Problem
from hvd_core.backends.describing import describe, probe
from hvd_core.backends.errors import BackendDuplicate, BackendError, BackendNotInstalled
from hvd_core.backends.installed_backend import InstalledBackend, WheelBackend
from hvd_core.backends.scan import canonical, duplicate_text, scan

_log = logging.getLogger("horovod")
_lock = threading.Lock()
_scanned: tuple[object, tuple[Candidate, ...], tuple[Problem, ...]] | None = None
_said: set[str] = set()
_passed_over: dict[str, Problem] = {}


def candidates() -> tuple[Candidate, ...]:
    """Every backend that could be asked for, the embedded ones first; a duplicate stands there as often as it is found.

    Reads metadata only, and not even those where the launcher has handed on what it found. Raises ValueError for a
    HOROVOD_BACKEND_SPEC that cannot be read.
    """
    return (*(b.candidate for b in registry.local()), *wheels())


def wheels() -> tuple[Candidate, ...]:
    """The candidates that are entry points of installed distributions."""
    return (spec.decode(os.environ) or _scan())[0]


def problems() -> tuple[Problem, ...]:
    """What was found and is not used, or not without a word of the user's."""
    return (spec.decode(os.environ) or _scan())[1]


def find(name: str, source: str, pin: str | None = None) -> Candidate:
    """The one candidate of this name. ``source`` says who asks (``HOROVOD_BACKEND``). ``pin``: the distribution that is
    meant, as plugins.toml has it, ``hvd-backend-x`` or ``hvd-backend-x>=0.3``.

    Raises BackendNotInstalled, BackendDuplicate when several distributions have the name and no pin decides.
    """
    name = name.strip().lower()
    for backend in registry.local():
        if backend.name == name:
            return backend.candidate
    same = [c for c in wheels() if c.name == name]
    if not same and spec.decode(os.environ) is not None:
        # The launcher did not have it; this process's own path may be a longer one.
        same = [c for c in _scan()[0] if c.name == name]
    if not same:
        known = [p for p in problems() if p.name == name]
        raise BackendNotInstalled(messages.not_installed(name, source, candidates(), problems=known))
    kept = [c for c in same if _meets(c, pin)] if pin else same
    if not kept:
        raise BackendNotInstalled(messages.pinned_away(name, source, str(pin), same))
    if len(kept) > 1:
        raise BackendDuplicate(duplicate_text(name, source, kept))
    return kept[0]


def installed() -> tuple[InstalledBackend, ...]:
    """All backends, the local ones first, then one per wheel and name: imports nothing, but looks for wheels where no
    launcher has. Names that two wheels offer stand there twice; find() says which is meant, or raises.
    """
    near = registry.local()
    taken = {b.name for b in near}
    return (*near, *(WheelBackend(c) for c in wheels() if c.name not in taken))


def lookup(name: str, source: str, pin: str | None = None) -> InstalledBackend:
    """The one backend of this name; wheels are looked for only when it is not a local one.

    ``source`` and ``pin`` as in find(), whose errors it raises.
    """
    found = find(name, source, pin)
    if found.origin == WHEEL:
        return WheelBackend(found)
    return next(b for b in registry.local() if b.name == found.name)


def launcher_spec(names: Iterable[str] | None) -> str | None:
    """What a launcher gives its ranks as HOROVOD_BACKEND_SPEC: found by looking here, whatever an outer job handed on.

    ``names``: the backends that the job is known to use; when all of them need no looking, None.
    """
    named = {name.strip().lower() for name in names or ()}
    if named and named <= {b.name for b in registry.local()}:
        return None
    return spec.encode(*_scan())


def warn_once(pinned: Callable[[str], bool] = lambda name: False) -> None:
    """Log what is wrong with installed plugins, each once in this process; where ``pinned(name)``, plugins.toml says
    which of several wheels is meant. Does not look if nobody has. For one rank of a job."""
    try:
        handed = spec.decode(os.environ)
    except ValueError:
        return
    found = handed or (_scanned or (None, (), ()))[1:]
    for problem in (*found[1], *_passed_over.values()):
        if problem.text in _said or (problem.kind == "duplicate" and pinned(problem.name)):
            continue
        _said.add(problem.text)
        # Where a job is started decides what lies in the current directory; that is no fault of the installation.
        _log.log(logging.INFO if problem.kind == "current-directory" else logging.WARNING, "%s", problem.text)


def passed_over(name: str, error: BackendError) -> None:
    """A plugin that nobody named turned out to be broken: for warn_once()."""
    _passed_over[name] = Problem(name, "broken", str(error))


def _scan() -> tuple[tuple[Candidate, ...], tuple[Problem, ...]]:
    """This installation's wheels, looked for again only when the path has changed."""
    global _scanned
    key = (tuple(sys.path), os.environ.get("PYTHONPATH"))
    with _lock:
        if _scanned is None or _scanned[0] != key:
            _scanned = (key, *scan([b.name for b in registry.embedded()]))
        return _scanned[1:]


def forget() -> None:
    """Look again next time: something has been installed while this process runs."""
    global _scanned
    with _lock:
        _scanned = None


def _meets(candidate: Candidate, pin: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    try:
        wanted = Requirement(pin)
    except InvalidRequirement as error:
        raise ValueError(
            f"horovod: [backend.{candidate.name}].distribution = '{pin}' cannot be read: {str(error).splitlines()[0]}\n"
            '  fix: a distribution\'s name, with or without versions: "hvd-backend-x>=0.3"'
        ) from None
    if canonical(wanted.name) != canonical(candidate.distribution or ""):
        return False
    try:
        return wanted.specifier.contains(candidate.version or "", prereleases=True)
    except InvalidVersion:
        return False


__all__ = [
    "GROUP",
    "Candidate",
    "Problem",
    "candidates",
    "describe",
    "find",
    "forget",
    "installed",
    "launcher_spec",
    "lookup",
    "passed_over",
    "probe",
    "problems",
    "warn_once",
    "wheels",
]
