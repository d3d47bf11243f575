"""All backends, and the one backend of a name: the phase discover. Imports no plugin. Any thread.

The embedded backends stand in a static table: the one list of the backends of hvd-core's own wheel, whose names no plugin
can take. Classes registered in this process and libraries named by variables need no search either. Wheels announce
their backends through the entry-point group ``hvd_core.backends``; the ranks of a job use the list that their launcher
made (HOROVOD_BACKEND_SPEC).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_core.backends import _messages
from hvd_core.backends._candidate import EMBEDDED, PYTHON, Candidate, Problem
from hvd_core.backends._discovery import entry_points
from hvd_core.backends._discovery.entry_points import canonical, duplicate_text, scan
from hvd_core.backends._discovery.installed_backend import (
    ABI,
    ClassBackend,
    InstalledBackend,
    LibraryBackend,
    WheelBackend,
)
from hvd_core.backends.descriptor import BackendDescriptor
from hvd_core.backends.errors import BackendDuplicate, BackendLoadError, BackendNotInstalled
from hvd_core.version import __version__

if TYPE_CHECKING:
    from hvd_core.backends.python_backend import PythonBackend, RegisteredBackend


def _chaos() -> RegisteredBackend:
    from hvd_core.backends._chaos import ChaosBackend  # imports NumPy
    from hvd_core.backends.python_backend import entry_of

    return entry_of(ChaosBackend)


_SHM = InstalledBackend("shm", "lib/libhvd_backend_shm.so", EMBEDDED, spans_hosts=False, automatic=True)
_TCP = InstalledBackend("tcp", "lib/libhvd_backend_tcp.so", EMBEDDED, spans_hosts=True, automatic=True)
_TCP.encrypts = True
_EMBEDDED = (
    _SHM,
    _TCP,
    # Only tests choose it, because it is slow.
    ClassBackend(Candidate("chaos", EMBEDDED, for_tests=True), _chaos, spans_hosts=True, version=__version__),
)

_PATH_VARIABLE = "HOROVOD_BACKEND_PATH_"
_added: list[InstalledBackend] = []


def embedded() -> tuple[InstalledBackend, ...]:
    """The backends of hvd-core itself, in the order in which the automatic choice tries them."""
    return _EMBEDDED


def local() -> tuple[InstalledBackend, ...]:
    """The backends that need no search: the embedded ones, classes registered in this process, and libraries without a
    wheel, for instance under development, which HOROVOD_BACKEND_PATH_<NAME> names by an absolute path. The latter two are
    never chosen automatically. Raises BackendLoadError for a path that is not absolute.
    """
    unpackaged = (
        _unpackaged(variable.removeprefix(_PATH_VARIABLE).lower(), path)
        for variable in sorted(name for name in os.environ if name.startswith(_PATH_VARIABLE))
        if (path := os.environ.get(variable))
    )
    return (*_EMBEDDED, *_added, *unpackaged)


def _unpackaged(name: str, path: str) -> InstalledBackend:
    if not os.path.isabs(path):
        raise BackendLoadError(
            f"horovod: backend '{name}': {_PATH_VARIABLE}{name.upper()}={path} is not an absolute path; libraries are "
            f"not taken from the current folder.\n  fix: {_PATH_VARIABLE}{name.upper()}=/full/path/to/the/library.so"
        )
    return LibraryBackend(name, path)


def host_math() -> tuple[str, str]:
    """(name, path) of the backend whose device table computes on host memory for the engine."""
    return _SHM.name, str(_SHM.path())


_scanning = threading.Lock()
_scanned: tuple[object, tuple[Candidate, ...], tuple[Problem, ...]] | None = None


def candidates() -> tuple[Candidate, ...]:
    """Every backend that can be selected, the embedded ones first. A name that several wheels offer is listed for each.

    Reads metadata only; reads none if the launcher handed on its list. Raises ValueError if HOROVOD_BACKEND_SPEC cannot
    be read.
    """
    return (*(b.candidate for b in local()), *wheels())


def wheels() -> tuple[Candidate, ...]:
    """The candidates that are entry points of installed distributions."""
    return (entry_points.decode(os.environ) or _scan())[0]


def problems() -> tuple[Problem, ...]:
    """The entry points that were found and are not used, and the names that several wheels offer."""
    return (entry_points.decode(os.environ) or _scan())[1]


def find(name: str, source: str, pin: str | None = None) -> Candidate:
    """The one candidate of this name. The arguments and exceptions are those of lookup()."""
    return lookup(name, source, pin).candidate


def installed() -> tuple[InstalledBackend, ...]:
    """All backends, the local ones first, then one per wheel and name. Imports no plugin; reads metadata unless the
    launcher handed on its list. A name that two wheels offer is listed twice; lookup() decides between them, or raises.
    """
    near = local()
    taken = {b.name for b in near}
    return (*near, *(WheelBackend(c) for c in wheels() if c.name not in taken))


def lookup(
    name: str, source: str, pin: str | None = None, policy: str = "", wheel: str | None = None
) -> InstalledBackend:
    """The one backend of this name. Wheels are searched only if no local backend has the name.

    ``source``: where the name was given, for messages (``HOROVOD_BACKEND``). ``pin``: the distribution to use, as
    plugins.toml writes it: ``hvd-backend-x`` or ``hvd-backend-x>=0.3``. ``policy``, ``wheel``: as in
    messages.not_installed().

    Raises BackendNotInstalled; BackendDuplicate if several distributions have the name and no pin decides.
    """
    name = name.strip().lower()
    for backend in local():
        if backend.name == name:
            return backend
    same = [c for c in wheels() if c.name == name]
    if not same and entry_points.decode(os.environ) is not None:
        # The launcher did not find it, but this process may have more folders on its path.
        same = [c for c in _scan()[0] if c.name == name]
    if not same:
        known = [p for p in problems() if p.name == name]
        raise BackendNotInstalled(_messages.not_installed(name, source, candidates(), policy, wheel, known))
    kept = [c for c in same if _meets(c, pin)] if pin else same
    if not kept:
        raise BackendNotInstalled(_messages.pinned_away(name, source, str(pin), same))
    if len(kept) > 1:
        raise BackendDuplicate(duplicate_text(name, source, kept))
    return WheelBackend(kept[0])


def launcher_spec(names: Iterable[str] | None) -> str | None:
    """The value of HOROVOD_BACKEND_SPEC that a launcher gives to its ranks, from a search on this host; the list of an
    outer job is ignored.

    ``names``: the backends that the job will use, if known. The result is None if none of them needs a search, or if
    the list is too long for a variable: the ranks then search themselves.
    """
    named = {name.strip().lower() for name in names or ()}
    if named and named <= {b.name for b in local()}:
        return None
    spec = entry_points.encode(*_scan())
    return spec if len(spec) <= entry_points.LONGEST else None


def _scan() -> tuple[tuple[Candidate, ...], tuple[Problem, ...]]:
    """The wheels of this installation and their problems. Searches again only after ``sys.path`` has changed."""
    global _scanned
    key = (tuple(sys.path), os.environ.get("PYTHONPATH"))
    with _scanning:
        if _scanned is None or _scanned[0] != key:
            _scanned = (key, *scan([b.name for b in embedded()]))
        return _scanned[1:]


def forget() -> None:
    """Search again at the next call, because a package was installed while this process runs."""
    global _scanned
    with _scanning:
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


_registering = threading.RLock()


def register_python_backend(cls: type[PythonBackend]) -> RegisteredBackend:
    """Make the backend class ``cls`` available by its name, in this process. The same class gives the same object.

    Raises ValueError if ``cls`` is not a subclass of PythonBackend, or if its name is not valid or already taken.
    """
    from hvd_core.backends.python_backend import entry_of  # imports NumPy

    with _registering:
        made = entry_of(cls)
        for other in (backend for backend in local() if backend.name == made.name):
            if isinstance(other, ClassBackend) and other.candidate.origin == PYTHON and other.make() is made:
                return made
            raise ValueError(
                f"register_python_backend({cls.__qualname__}): the backend name '{cls.name}' is taken already "
                f"({other.origin}); give the class another name"
            )
        one_host, version = made.backend.one_host, str(made.backend.version)
        _added.append(ClassBackend(Candidate(made.name, PYTHON), lambda: made, not one_host, version))
        return made


# The embedded backends as entry points of pyproject.toml, for other programs that read entry points.


def _described(backend: InstalledBackend) -> BackendDescriptor:
    in_python = "hvd_core.backends._chaos:ChaosBackend" if backend.candidate.for_tests else None
    return BackendDescriptor(
        name=backend.name,
        abi=ABI,
        devices=backend.devices,
        provides=backend.provides,
        library=None if in_python else Path(backend.path()),
        spans_hosts=backend.spans_hosts,
        python=in_python,
    )


shm, tcp, chaos = (partial(_described, backend) for backend in _EMBEDDED)
