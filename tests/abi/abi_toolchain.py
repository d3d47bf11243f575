"""Compiles the plugin layer and the programs of this folder, with the sanitizers where they are installed.

The programs stand on the plugin layer's own sources: no other part of the engine, no Python module.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGE = ROOT / "hvd_core"
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
COMMON = ["-O0", "-g1", "-Wall", "-Wextra", "-Werror"]
PLUGIN = ["-std=c++17", *COMMON, "-Wpedantic", "-fPIC", "-shared", "-fvisibility=hidden"]
# A newer header leaves the engine's tables partly unset, which is what the old/new matrix is about.
HOST = ["-std=c++20", *COMMON, "-Wno-missing-field-initializers", f"-I{PACKAGE}", "-c"]


class Toolchain:
    """A C++ compiler with a folder for what it makes; ``include`` stands in for hvd_core/include."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cxx = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "c++"
        self.cc = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or "cc"
        probe = folder / "probe.cc"
        probe.write_text("int main() { return 0; }\n")
        test = subprocess.run([self.cxx, *SANITIZE, probe, "-o", folder / "probe"], capture_output=True)
        self.sanitize = SANITIZE if test.returncode == 0 else []

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)

    def must(self, *command: object) -> str:
        done = self.run(*command)
        assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def library(self, source: Path, name: str, *flags: str, include: Path | None = None) -> Path:
        """A shared object from one C++17 source, as a plugin's author would build it."""
        out = self.folder / f"lib{name}.so"
        headers = f"-I{include or PACKAGE / 'include'}"
        self.must(self.cxx, *PLUGIN, *self.sanitize, *flags, headers, source, "-o", out)
        return out

    def engine(self, include: Path | None = None) -> list[Path]:
        """Object files of the plugin layer, compiled against one version of the headers."""
        place = self.folder / f"engine-{(include or Path('this')).name}"
        if not place.is_dir():
            place.mkdir()
            sources = sorted((PACKAGE / "engine" / "plugin").glob("*.cc"))
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda s: self._object(s, place / f"{s.stem}.o", include), sources))
        return sorted(place.glob("*.o"))

    def program(self, source: Path, include: Path | None = None) -> Path:
        """A test program linked with the plugin layer."""
        objects = self.engine(include)
        out = self.folder / f"{source.stem}-{(include or Path('this')).name}"
        main = out.with_suffix(".main.o")
        self._object(source, main, include)
        self.must(self.cxx, *self.sanitize, main, *objects, "-ldl", "-lpthread", "-o", out)
        return out

    def _object(self, source: Path, out: Path, include: Path | None) -> None:
        headers = f"-I{include or PACKAGE / 'include'}"
        self.must(self.cxx, *HOST, headers, *self.sanitize, source, "-o", out)
