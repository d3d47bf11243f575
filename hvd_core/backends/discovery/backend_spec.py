"""HOROVOD_BACKEND_SPEC: the list of backends that a job's launcher found, so that its ranks need not search.

A thousand ranks that each read the metadata of some hundred distributions slow down a shared file system. The text is
JSON and holds names, versions and the wheels' static descriptions. Only ranks of the launcher's own Python
installation use it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_core._config.wheels import pip_install
from hvd_core.backends.candidate import WHEEL, Candidate, Problem
from hvd_core.backends.errors import BackendVersionMismatch
from hvd_core.backends.static_description import of_table

VARIABLE = "HOROVOD_BACKEND_SPEC"
# Linux starts no program with a variable of 128 KiB, and a remote shell gets all variables in one argument.
LONGEST = 32 << 10
_FORMAT = 1


def encode(candidates: Sequence[Candidate], problems: Sequence[Problem] = ()) -> str:
    """The text of the variable: the wheels among ``candidates``, and ``problems``."""
    wheels = [c for c in candidates if c.origin == WHEEL]
    rows = [[c.name, c.entry, c.distribution, c.version, c.location, c.metadata] for c in wheels]
    found: dict[str, Any] = {
        "format": _FORMAT,
        "host": socket.gethostname(),
        "prefix": sys.prefix,
        "backends": rows,
        "static": [c.static and c.static.as_row() for c in wheels],
    }
    if problems:
        found["problems"] = [[p.name, p.kind, p.text] for p in problems]
    return json.dumps(found, separators=(",", ":"))


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
        described = found.get("static") or [None] * len(found["backends"])
        wheels = tuple(
            Candidate(
                *(name, WHEEL, distribution, version, entry, location, metadata),
                from_spec=True,
                static=of_table(static) if static else None,
            )
            for (name, entry, distribution, version, location, metadata), static in zip(
                found["backends"], described
            )
        )
        return wheels, tuple(Problem(*row) for row in found.get("problems", ()))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"horovod: {VARIABLE} cannot be read ({type(error).__name__}: {error}). The launcher sets it.\n"
            f"  fix: unset {VARIABLE}; the ranks then search for backends themselves"
        ) from None


def launcher_host(environ: Mapping[str, str]) -> str:
    """The host on which the launcher searched; "" if no launcher did."""
    try:
        return json.loads(environ.get(VARIABLE) or "{}").get("host", "")
    except ValueError:
        return ""


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
    launcher = launcher_host(os.environ)
    has = f"has {candidate.distribution} {here}" if here else f"does not have {candidate.distribution}"
    raise BackendVersionMismatch(
        f"horovod: backend '{candidate.name}' ({candidate.describe_origin()}): host {socket.gethostname()} {has}, but "
        f"the launcher found {candidate.version} on {launcher or 'its host'}.\n"
        "  fix: install one version on all hosts: "
        + pip_install(f"{candidate.distribution}=={candidate.version}")
    )
