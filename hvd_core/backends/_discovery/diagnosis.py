"""Why a library does not open, from the reports of ``ldd`` and ``readelf``. Runs none of the library's code."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 30.0


@dataclass(frozen=True)
class SharedObject:
    """``needed``: sonames of other libraries; ``runpath``: its own search folders, ``$ORIGIN`` replaced; ``defined``: the
    symbols that it exports."""

    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    defined: tuple[str, ...]


def read(path: Path) -> SharedObject:
    """The dynamic section of a library, as ``readelf`` (of binutils) shows it. Raises OSError without ``readelf``."""
    told = _output("readelf", "-dW", "--dyn-syms", str(path))
    origin = str(path.resolve().parent)
    paths = ":".join(re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", told))
    # Num: Value Size Type Bind Vis Ndx Name
    symbols = re.findall(r"^ *\d+: \w+ +\w+ +\w+ +\w+ +\w+ +(?!UND)\w+ (\S+)$", told, re.MULTILINE)
    return SharedObject(
        tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", told)),
        tuple(p.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for p in paths.split(":") if p),
        tuple(name.partition("@")[0] for name in symbols),
    )


def searched(library: Path) -> tuple[str, ...]:
    """The folders in which the dynamic loader searches the needed libraries. The system's folders are one entry, the
    last. Without ``readelf`` the folders that the library itself names are left out."""
    try:
        own = read(library).runpath
    except (OSError, subprocess.TimeoutExpired):
        own = ()
    named = tuple(f for f in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if f)
    return (*own, *named, "system folders (ld.so.cache)")


def load_diagnosis(path: Path) -> list[str]:
    """Lines for ``hvd plugin doctor``: where each needed library was found, the symbols that no library defines, and the
    searched folders."""
    try:
        told = _output("ldd", "-r", str(path))
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"ldd cannot examine it: {error}"]
    lines = [
        f"needs {name}: {place}"
        for name, place in re.findall(r"^\t(\S+) => (.+?)(?: \(0x\w+\))?$", told, re.M)
    ]
    symbols = re.findall(r"^(?:undefined symbol: (\S+)|symbol (\S+), version .* not defined)", told, re.M)
    lines += [f"undefined symbol that no library defines: {a or b}" for a, b in symbols]
    return [*lines, f"searched: {', '.join(searched(path))}"]


def _output(*command: str) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        env={**os.environ, "LC_ALL": "C"},
    )
    return done.stdout
