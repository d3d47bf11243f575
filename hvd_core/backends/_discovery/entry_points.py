"""The backends that installed distributions announce as entry points, and the list of them that a launcher hands on.

Imports no plugin. A scan reads a file per installed distribution, so a job's launcher scans once and hands on the
result in HOROVOD_BACKEND_SPEC: a thousand ranks that each read the metadata of some hundred distributions slow down a
shared file system.
"""

from __future__ import annotations

import json
import os
import re
import site
import socket
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_core._config.hints import pip_install
from hvd_core.backends._candidate import GROUP, NAME, SUFFIX, WHEEL, Candidate, Problem, of_table, read_file
from hvd_core.backends.errors import BackendVersionMismatch

if TYPE_CHECKING:
    from importlib.metadata import Distribution


OWN_DISTRIBUTION = "hvd-core"


def scan(reserved: Sequence[str]) -> tuple[tuple[Candidate, ...], tuple[Problem, ...]]:
    """All backends of installed distributions, duplicates included, and their problems. ``reserved``: names of the
    embedded backends, which no distribution can take.

    Distributions that are found only through the current directory do not count: the folder in which a program is
    started must not decide which code runs in it.
    """
    here = [entry for entry in sys.path if _only_current_directory(entry)]
    path = [entry for entry in dict.fromkeys(sys.path) if entry not in here]
    found: list[Candidate] = []
    problems: list[Problem] = []
    for candidate in _announced(path, problems):
        if NAME.fullmatch(candidate.name) is None:
            reason = "a backend's name is 1 to 32 characters of a-z, 0-9, '_', '-'"
            problems.append(_ignored(candidate, "name", reason, "its author renames the entry point"))
        elif candidate.name in reserved:
            reason = "an embedded backend has this name, and nothing can replace it"
            fix = f"its author renames it, or pip uninstall {candidate.distribution}"
            problems.append(_ignored(candidate, "reserved", reason, fix))
        else:
            found.append(_with_description(candidate, problems))
    known = {(c.distribution, c.entry) for c in found}
    for candidate in _announced(list(dict.fromkeys(os.path.abspath(entry) for entry in here)), []):
        if (candidate.distribution, candidate.entry) not in known:
            reason = f"it was found only through the current directory ({candidate.location})"
            fix = "install it (pip install), or name its folder in PYTHONPATH"
            problems.append(_ignored(candidate, "current-directory", reason, fix))
    for name in dict.fromkeys(c.name for c in found):
        same = [c for c in found if c.name == name]
        if len(same) > 1:
            problems.append(Problem(name, "duplicate", duplicate_text(name, "", same)))
    return tuple(sorted(found, key=lambda c: (c.name, c.distribution or ""))), tuple(problems)


def _ignored(candidate: Candidate, kind: str, reason: str, fix: str) -> Problem:
    backend = f"backend '{candidate.name}' ({candidate.describe_origin()})"
    return Problem(candidate.name, kind, f"horovod: {backend} is ignored: {reason}.\n  fix: {fix}")


def duplicate_text(name: str, source: str, same: Sequence[Candidate]) -> str:
    """The message for a name that several distributions offer. ``source``: where the name was given, "" if nowhere."""
    asked = f" (from {source})" if source else ""
    places = "; ".join(c.describe_place() for c in same)
    return (
        f"horovod: backend '{name}'{asked} is offered by {len(same)} wheels, and nothing says which is meant.\n"
        f"  found: {places}\n"
        f"  fix: uninstall all but one, or pin one in plugins.toml: [backend.{name}] distribution = "
        f'"{same[0].distribution}"\n'
        "  list: hvd plugin list"
    )


def canonical(distribution: str) -> str:
    """A distribution's name as it is compared: lower case, ``-`` for every run of ``-_.``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _announced(path: list[str], problems: list[Problem]) -> Iterator[Candidate]:
    """The entry points of the distributions on the path; of two with one name the first, which an import finds."""
    from importlib.metadata import distributions

    for distribution in distributions(path=path):
        location, folder = _place(distribution)
        try:
            if GROUP not in (distribution.read_text("entry_points.txt") or ""):
                continue
            metadata = distribution.metadata  # each look at it parses the file
            name, version = metadata["Name"], metadata["Version"]
            first = next(iter(distributions(name=name, path=path)), distribution)
            if not name or canonical(name) == OWN_DISTRIBUTION or _place(first) != (location, folder):
                continue
            entries = [e for e in distribution.entry_points if e.group == GROUP]
        except Exception as error:  # one distribution's broken metadata must not hide the others
            text = (
                f"horovod: the metadata in {os.path.join(location or '?', folder or '?')} cannot be read: "
                f"{type(error).__name__}: {error}\n  fix: reinstall that distribution"
            )
            problems.append(Problem("?", "metadata", text))
            continue
        for entry in entries:
            yield Candidate(entry.name, WHEEL, name, version, entry.value, location, folder)


def _with_description(candidate: Candidate, problems: list[Problem]) -> Candidate:
    """The candidate with its wheel's static description. A file that cannot be read is a problem."""
    try:
        file = _description_file(candidate)
        return candidate if file is None else replace(candidate, static=read_file(file))
    except Exception as error:  # one wheel's file must not hide the others
        text = (
            f"horovod: backend '{candidate.name}' ({candidate.describe_origin()}) is used only if it is named, because "
            f"its static description cannot be read: {error}\n  fix: its author repairs that file"
        )
        problems.append(Problem(candidate.name, "description", text))
        return candidate


def _description_file(candidate: Candidate) -> Path | None:
    """``NAME.hvd.toml`` beside the entry point's module: in the package, or in the folder of a module that is a file.
    Imports nothing."""
    parts = str(candidate.entry).partition(":")[0].partition("[")[0].strip().split(".")
    spec = find_spec(parts[0])  # of a package or module at the top, which this does not import
    if spec is None:
        return None
    roots = [Path(place).parent for place in spec.submodule_search_locations or [str(spec.origin)]]
    folders = [folder for root in roots for folder in (root.joinpath(*parts), root.joinpath(*parts[:-1]))]
    files = (folder / f"{candidate.name}{SUFFIX}" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _place(distribution: Distribution) -> tuple[str | None, str | None]:
    """(folder, name) of the metadata; (None, None) if an unusual finder does not tell them."""
    folder = getattr(distribution, "_path", None)
    return (str(folder.parent), str(folder.name)) if folder is not None else (None, None)


def _only_current_directory(entry: str) -> bool:
    """Whether the interpreter added this entry to sys.path only because it was started in that folder."""
    if entry in ("", "."):
        return True
    try:
        if not os.path.samefile(entry, os.curdir):
            return False
    except OSError:
        return False
    # A folder that PYTHONPATH names, or that is an installation's, counts even if it is the current directory.
    explicit = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(p)]
    explicit += [*sysconfig.get_paths().values(), *getattr(site, "PREFIXES", ())]
    explicit += [site.getusersitepackages(), *site.getsitepackages()]
    return not any(os.path.realpath(p) == os.path.realpath(entry) for p in explicit)


# HOROVOD_BACKEND_SPEC: JSON with names, versions and the wheels' static descriptions. Only ranks of the launcher's own
# Python installation use it.

VARIABLE = "HOROVOD_BACKEND_SPEC"
# Linux starts no program with a variable of 128 KiB, and a remote shell gets all variables in one argument.
LONGEST = 32 << 10
_FORMAT = 2


def encode(candidates: Sequence[Candidate], problems: Sequence[Problem] = ()) -> str:
    """The text of the variable: the wheels among ``candidates``, and ``problems``."""
    found = {
        "format": _FORMAT,
        "host": socket.gethostname(),
        "prefix": sys.prefix,
        "backends": [_row(c) for c in candidates if c.origin == WHEEL],
        "problems": [asdict(problem) for problem in problems],
    }
    return json.dumps(found, separators=(",", ":"))


def _row(candidate: Candidate) -> dict[str, Any]:
    row = {key: value for key, value in vars(candidate).items() if value}
    return row | {"from_spec": True} | ({"static": candidate.static.as_row()} if candidate.static else {})


def decode(environ: Mapping[str, str]) -> tuple[tuple[Candidate, ...], tuple[Problem, ...]] | None:
    """The launcher's candidates and problems. None if the variable is not set, or if this process runs another Python
    installation than the launcher.

    Raises ValueError if the text cannot be read.
    """
    text = environ.get(VARIABLE)
    if not text:
        return None
    try:
        found = json.loads(text)
        if found["format"] != _FORMAT or found["prefix"] != sys.prefix:
            return None
        wheels = [
            Candidate(**row | ({"static": of_table(row["static"])} if "static" in row else {}))
            for row in found["backends"]
        ]
        return tuple(wheels), tuple(Problem(**row) for row in found["problems"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"horovod: {VARIABLE} cannot be read ({type(error).__name__}: {error}). The launcher sets it.\n"
            f"  fix: unset {VARIABLE}; the ranks then search for backends themselves"
        ) from None


def check_version(candidate: Candidate) -> None:
    """Check that this host has the version that the launcher found, by one folder name along sys.path.

    Raises BackendVersionMismatch, which names both versions and both hosts.
    """
    if not candidate.from_spec or candidate.metadata is None:
        return
    if any(os.path.isdir(os.path.join(place or os.curdir, candidate.metadata)) for place in sys.path):
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        here = version(candidate.distribution or "")
    except PackageNotFoundError:
        here = None
    if here == candidate.version:
        return
    launcher = json.loads(os.environ.get(VARIABLE) or "{}").get("host", "its host")
    has = f"has {candidate.distribution} {here}" if here else f"does not have {candidate.distribution}"
    raise BackendVersionMismatch(
        f"horovod: backend '{candidate.name}' ({candidate.describe_origin()}): host {socket.gethostname()} {has}, but "
        f"the launcher found {candidate.version} on {launcher}.\n"
        "  fix: install one version on all hosts: "
        + pip_install(f"{candidate.distribution}=={candidate.version}")
    )
