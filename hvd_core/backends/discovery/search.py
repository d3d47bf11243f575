"""The list of all backends, and the one backend of a name: the phase discover.

Discovery imports no plugin: the embedded backends are in a table (registry.py), and wheels announce their backends
through the entry-point group ``hvd_core.backends``. The ranks of a job use the list that their launcher made
(HOROVOD_BACKEND_SPEC). Any thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable

from hvd_core.backends import messages
from hvd_core.backends.candidate import WHEEL, Candidate, Problem
from hvd_core.backends.discovery import backend_spec, registry
from hvd_core.backends.discovery.entry_points import canonical, duplicate_text, scan
from hvd_core.backends.discovery.installed_backend import InstalledBackend
from hvd_core.backends.discovery.wheel_backend import WheelBackend
from hvd_core.backends.errors import BackendDuplicate, BackendNotInstalled

_lock = threading.Lock()
_scanned: tuple[object, tuple[Candidate, ...], tuple[Problem, ...]] | None = None


def candidates() -> tuple[Candidate, ...]:
    """Every backend that can be selected, the embedded ones first. A name that several wheels offer is listed for each.

    Reads metadata only; reads none if the launcher handed on its list. Raises ValueError if HOROVOD_BACKEND_SPEC cannot
    be read.
    """
    return (*(b.candidate for b in registry.local()), *wheels())


def wheels() -> tuple[Candidate, ...]:
    """The candidates that are entry points of installed distributions."""
    return (backend_spec.decode(os.environ) or _scan())[0]


def problems() -> tuple[Problem, ...]:
    """The entry points that were found and are not used, and the names that several wheels offer."""
    return (backend_spec.decode(os.environ) or _scan())[1]


def find(name: str, source: str, pin: str | None = None) -> Candidate:
    """The one candidate of this name.

    ``source``: where the name was given, for messages (``HOROVOD_BACKEND``). ``pin``: the distribution to use, as
    plugins.toml writes it: ``hvd-backend-x`` or ``hvd-backend-x>=0.3``.

    Raises BackendNotInstalled; BackendDuplicate if several distributions have the name and no pin decides.
    """
    name = name.strip().lower()
    for backend in registry.local():
        if backend.name == name:
            return backend.candidate
    same = [c for c in wheels() if c.name == name]
    if not same and backend_spec.decode(os.environ) is not None:
        # The launcher did not find it, but this process may have more folders on its path.
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
    """All backends, the local ones first, then one per wheel and name. Imports no plugin; reads metadata unless the
    launcher handed on its list. A name that two wheels offer is listed twice; find() decides between them, or raises.
    """
    near = registry.local()
    taken = {b.name for b in near}
    return (*near, *(WheelBackend(c) for c in wheels() if c.name not in taken))


def lookup(name: str, source: str, pin: str | None = None) -> InstalledBackend:
    """The one backend of this name. Wheels are searched only if no local backend has the name.

    ``source``, ``pin`` and the exceptions are those of find().
    """
    found = find(name, source, pin)
    if found.origin == WHEEL:
        return WheelBackend(found)
    return next(b for b in registry.local() if b.name == found.name)


def launcher_spec(names: Iterable[str] | None) -> str | None:
    """The value of HOROVOD_BACKEND_SPEC that a launcher gives to its ranks, from a search on this host; the list of an
    outer job is ignored.

    ``names``: the backends that the job will use, if known. The result is None if none of them needs a search, or if
    the list is too long for a variable: the ranks then search themselves.
    """
    named = {name.strip().lower() for name in names or ()}
    if named and named <= {b.name for b in registry.local()}:
        return None
    spec = backend_spec.encode(*_scan())
    return spec if len(spec) <= backend_spec.LONGEST else None


def _scan() -> tuple[tuple[Candidate, ...], tuple[Problem, ...]]:
    """The wheels of this installation and their problems. Searches again only after ``sys.path`` has changed."""
    global _scanned
    key = (tuple(sys.path), os.environ.get("PYTHONPATH"))
    with _lock:
        if _scanned is None or _scanned[0] != key:
            _scanned = (key, *scan([b.name for b in registry.embedded()]))
        return _scanned[1:]


def forget() -> None:
    """Search again at the next call, because a package was installed while this process runs."""
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
