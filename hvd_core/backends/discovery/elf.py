"""Reads the ELF dynamic section of a shared object: the libraries it needs, their folders, and the symbols it does not
define. Only reads the file; any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
                return address - vaddr + offset
        raise ValueError(f"{self.path}: nothing is at address {address:#x}")

    def symbols(self) -> Iterator[tuple[int, int, int]]:
        table = self.at(self.tags[_SYMTAB][0])
        for i in range(1, self.symbol_count()):
            name, info, _, section = struct.unpack_from("<IBBH", self.data, table + 24 * i)
            yield name, info, section

    def symbol_count(self) -> int:
        # The dynamic section does not contain the number of symbols; the hash tables do.
        if _HASH in self.tags:
            return struct.unpack_from("<II", self.data, self.at(self.tags[_HASH][0]))[1]
        if _GNU_HASH not in self.tags:
            return 0
        start = self.at(self.tags[_GNU_HASH][0])
        buckets, first, bloom, _ = struct.unpack_from("<IIII", self.data, start)
        at = start + 16 + 8 * bloom
        last = max(struct.unpack_from(f"<{buckets}I", self.data, at), default=0)
        if last < first:
            return first
        chains = at + 4 * buckets
        while not struct.unpack_from("<I", self.data, chains + 4 * (last - first))[0] & 1:
            last += 1
        return last + 1
