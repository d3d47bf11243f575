"""Finds out why a library does not open, in more detail than the dynamic loader tells. For ``hvd plugin doctor``; no job
runs this code.

A child process opens the library, so that crashes and side effects stay there. Only here is a library opened with lazy
binding: a library with missing functions then still opens, and can be searched for them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

# The ELF dynamic section of a shared object.

_DYNAMIC, _LOAD = 2, 1  # segment types
_NEEDED, _STRTAB, _SYMTAB, _SONAME, _RPATH, _RUNPATH = 1, 5, 6, 14, 15, 29  # tags of the dynamic section
_HASH, _GNU_HASH = 4, 0x6FFFFEF5
_WEAK = 2


@dataclass(frozen=True)
class SharedObject:
    """``needed``: sonames of other libraries; ``runpath``: its own search folders, ``$ORIGIN`` replaced; ``undefined``:
    symbols that other libraries must define (weak ones excluded); ``defined``: symbols that it defines."""

    soname: str
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    undefined: tuple[str, ...]
    defined: tuple[str, ...]


def read(path: Path) -> SharedObject:
    """The content of the dynamic section. Raises ValueError if the file is not a 64-bit little-endian ELF shared object,
    and OSError."""
    try:
        return _Reader(path).read()
    except (struct.error, IndexError, KeyError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is a damaged shared object: {error}") from None


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path, self.data = path, path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        offset, size, count = (
            *struct.unpack_from("<Q", self.data, 32),
            *struct.unpack_from("<HH", self.data, 54),
        )
        rows = [struct.unpack_from("<IIQQQQ", self.data, offset + size * i) for i in range(count)]
        self.loads = [(vaddr, at, filesz) for kind, _, at, vaddr, _, filesz in rows if kind == _LOAD]
        dynamic = next(((at, filesz) for kind, _, at, _, _, filesz in rows if kind == _DYNAMIC), None)
        if dynamic is None:
            raise ValueError(f"{path} has no dynamic section")
        self.tags: dict[int, list[int]] = {}
        for tag, value in struct.iter_unpack(
            "<qQ", self.data[dynamic[0] : dynamic[0] + dynamic[1] // 16 * 16]
        ):
            if tag == 0:
                break
            self.tags.setdefault(tag, []).append(value)

    def read(self) -> SharedObject:
        strings = self.at(self.tags[_STRTAB][0])

        def text(start: int) -> str:
            return self.data[strings + start : self.data.index(b"\0", strings + start)].decode()

        paths = ":".join(text(v) for v in self.tags.get(_RUNPATH) or self.tags.get(_RPATH, []))
        origin = str(self.path.resolve().parent)
        folders = [p.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for p in paths.split(":") if p]
        undefined, defined = [], []
        for name, info, section in self.symbols():
            if section:
                defined.append(text(name))
            elif name and info >> 4 != _WEAK:
                undefined.append(text(name))
        return SharedObject(
            text(self.tags[_SONAME][0]) if _SONAME in self.tags else "",
            tuple(text(v) for v in self.tags.get(_NEEDED, [])),
            tuple(folders),
            tuple(undefined),
            tuple(defined),
        )

    def at(self, address: int) -> int:
        """The offset in the file of the byte at this address."""
        for vaddr, offset, size in self.loads:
            if vaddr <= address < vaddr + size:
                return int(address - vaddr + offset)
        raise ValueError(f"{self.path}: nothing is at address {address:#x}")

    def symbols(self) -> Iterator[tuple[int, int, int]]:
        table = self.at(self.tags[_SYMTAB][0])
        for i in range(1, self.symbol_count()):
            name, info, _, section = struct.unpack_from("<IBBH", self.data, table + 24 * i)
            yield name, info, section

    def symbol_count(self) -> int:
        # The dynamic section does not contain the number of symbols; the hash tables do.
        if _HASH in self.tags:
            return int(struct.unpack_from("<II", self.data, self.at(self.tags[_HASH][0]))[1])
        if _GNU_HASH not in self.tags:
            return 0
        start = self.at(self.tags[_GNU_HASH][0])
        buckets: int
        first: int
        buckets, first, bloom, _ = struct.unpack_from("<IIII", self.data, start)
        at = start + 16 + 8 * bloom
        last: int = max(struct.unpack_from(f"<{buckets}I", self.data, at), default=0)
        if last < first:
            return first
        chains = at + 4 * buckets
        while not struct.unpack_from("<I", self.data, chains + 4 * (last - first))[0] & 1:
            last += 1
        return last + 1


# The program of the child, which imports nothing of hvd-core. Its argument is the library; its input is a line of JSON
# with the symbols, libraries and folders to look for.
_CHILD = r"""
import ctypes, json, os, sys
path, (undefined, needed, folders) = sys.argv[1], json.loads(sys.stdin.read())
def opens(name, mode):
    try:
        return ctypes.CDLL(name, mode=mode), ""
    except OSError as error:
        return None, str(error)
out = {}
library, out["error"] = opens(path, os.RTLD_NOW | os.RTLD_LOCAL)
out["lazy"] = False
if library is None:
    library, _ = opens(path, os.RTLD_LAZY | os.RTLD_LOCAL)
    out["lazy"] = library is not None
process = ctypes.CDLL(None)
out["missing"] = [s for s in undefined if not (hasattr(library, s) or hasattr(process, s))] if library else []
out["needed"] = {}
for name in needed:
    near = [p for p in (os.path.join(f, name) for f in folders) if os.path.exists(p)]
    found, why = opens((near + [name])[0], os.RTLD_LAZY | os.RTLD_LOCAL)
    where = ""
    if found is not None:
        with open("/proc/self/maps", errors="surrogateescape") as maps:
            files = [line.split(None, 5)[5].strip() for line in maps if "/" in line]
        # The mapped file has its real name, which starts with the soname: libx.so.6.0.30 for libx.so.6.
        where = (near + [f for f in files if os.path.basename(f).startswith(name)] + ["loaded"])[0]
    out["needed"][name] = [where, why]
print(json.dumps(out))
"""


@dataclass(frozen=True)
class Diagnosis:
    """The requirements of a library, and which of them are met.

    ``error``: the dynamic loader's message, "" if the library opens. ``lazy``: whether the library opens only with lazy
    binding; ``missing`` then lists the symbols that no library defines. ``needed``: soname -> (the place where it was
    found, or "", and the reason why it does not open). ``searched``: the folders in the order of the loader. ``majors``:
    the major versions of the backend ABI that the library supports.
    """

    path: str
    error: str = ""
    lazy: bool = False
    missing: tuple[str, ...] = ()
    needed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    searched: tuple[str, ...] = ()
    majors: tuple[int, ...] = ()

    @property
    def opens(self) -> bool:
        """Whether the engine could open it."""
        return not self.error

    @property
    def absent(self) -> tuple[str, ...]:
        """The needed libraries that do not open; with the reason if the file exists."""
        return tuple(
            name if not os.path.isfile(place) else f"{name} ({why})"
            for name, (place, why) in self.needed.items()
            if why
        )


def searched(library: Path) -> tuple[str, ...]:
    """The folders in which the dynamic loader searches the needed libraries. The system's folders are one entry, the
    last."""
    try:
        own = read(library).runpath
    except (ValueError, OSError):
        own = ()
    named = tuple(f for f in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if f)
    return (*own, *named, "system folders (ld.so.cache)")


def load_diagnosis(path: str | Path, timeout_s: float = 30.0) -> Diagnosis:
    """Open the library in a child process and find out what is missing. Does not raise if the library has faults."""
    path = Path(path)
    try:
        found = read(path)
    except (ValueError, OSError) as error:
        return Diagnosis(str(path), error=str(error))
    entry = re.compile(r"hvd_backend_entry_v(\d+)")
    majors = tuple(sorted(int(m[1]) for m in map(entry.fullmatch, found.defined) if m))
    question = json.dumps([found.undefined, found.needed, found.runpath])
    diagnosis = partial(Diagnosis, str(path), searched=searched(path), majors=majors)
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD, str(path)],
            input=question,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return diagnosis(error=f"opening it takes longer than {timeout_s:g} s")
    if child.returncode < 0:
        ended = signal.Signals(-child.returncode).name
        return diagnosis(error=f"opening it ends the process with {ended}")
    try:
        answer = json.loads(child.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return diagnosis(error=f"opening it ends the process: {child.stderr.strip()[-500:]}")
    needed = {name: tuple(outcome) for name, outcome in answer["needed"].items()}
    return diagnosis(
        error=answer["error"],
        lazy=answer["lazy"],
        missing=tuple(answer["missing"]),
        needed=needed,
    )
