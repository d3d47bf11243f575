"""Compiles the plugin layer and the programs of this folder, with the sanitizers where they are installed.

The programs stand on the plugin layer's own sources: no other part of the engine, no Python module.
"""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compiled import ROOT, cc, compiled, cxx

HERE = Path(__file__).resolve().parent
PACKAGE = ROOT / "hvd_core"
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
COMMON = ["-O0", "-g1", "-Wall", "-Wextra", "-Werror"]
PLUGIN = ["-std=c++17", *COMMON, "-Wpedantic", "-fPIC", "-shared", "-fvisibility=hidden"]
# A newer header leaves the engine's tables partly unset; the old/new matrix tests exactly that.
HOST = ["-std=c++20", *COMMON, "-Wno-missing-field-initializers", "-c"]


class Toolchain:
    """A C++ compiler; ``include`` stands in for hvd_core/include."""

    def __init__(self) -> None:
        self.cxx, self.cc = cxx(), cc()
        self.sanitize = SANITIZE
        try:
            compiled("probe", [self.cxx, *SANITIZE], [HERE / "sanitizer_probe.cc"])
        except AssertionError:
            self.sanitize = []

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)

    def must(self, *command: object) -> str:
        done = self.run(*command)
        assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def library(self, source: Path, name: str, *flags: str, include: Path | None = None) -> Path:
        """A shared object from one C++17 source, as a plugin's author would build it."""
        words = [self.cxx, *PLUGIN, *self.sanitize, *flags]
        return compiled(f"lib{name}.so", words, [source], [include or PACKAGE / "include"])

    def program(self, source: Path, include: Path | None = None) -> Path:
        """A test program linked with the plugin layer, both compiled against one version of the headers."""
        engine = PACKAGE / "engine"
        sources = [source, engine / "base" / "text.cc", *sorted((engine / "plugins").glob("*.cc"))]
        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(lambda s: self._object(s, include), sources))
        words = [self.cxx, *self.sanitize]
        return compiled(source.stem, words, [], after=[*objects, "-ldl", "-lpthread"])

    def _object(self, source: Path, include: Path | None) -> Path:
        words = [self.cxx, *HOST, *self.sanitize]
        # The version of the headers comes before the package's own.
        return compiled(f"{source.stem}.o", words, [source], [include or PACKAGE / "include", PACKAGE])


# (what ends a struct today, what a future minor would put behind it)
APPENDED = [
    ("  hvd_rc (*window_free)(hvd_window, hvd_error*);\n",
     "  hvd_rc (*echo)(hvd_comm, int64_t, int64_t*, hvd_error*);\n"),
    ("  uint64_t seq; /* for host->activity */\n", "  uint64_t hint;\n"),
    ("  uint64_t pack_below;\n", "  uint64_t latency_ns;\n"),
    ("  char text[992];\n", "  int64_t retry_after_ns;\n"),
    ("  const char *name, *type, *fallback, *range, *doc;\n", "  const char* since;\n"),
    ("  int32_t src_dtype, dst_dtype;\n", "  uint64_t spread;\n"),
    ("  void (*notify)(void* token);\n", "  int64_t (*now)(void);\n"),
]  # fmt: skip


# How arithmetic.cc is compiled: as for use, and with a trap on undefined behaviour.
ARITHMETIC = {
    "fast": ["-O3"],
    "checked": ["-O1", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"],
}


def arithmetic(flavour: str) -> Path:
    """The library of arithmetic.cc, compiled in one of the ways of ARITHMETIC."""
    flags = [
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-fPIC",
        "-shared",
        *ARITHMETIC[flavour],
    ]
    return compiled(
        f"libarithmetic-{flavour}.so", [cxx(), *flags], [HERE / "arithmetic.cc"], [PACKAGE / "include"]
    )


def loopbacks(toolchain: Toolchain) -> list[Path]:
    """The sample backend under two names: two libraries in one process must not share anything."""
    source = HERE / "loopback.cc"
    return [toolchain.library(source, name, f"-DLOOPBACK_NAME={name}") for name in ("loopback", "loopback2")]


def loaded_loopback(toolchain: Toolchain) -> Path:
    """The sample backend under its own name."""
    return toolchain.library(HERE / "loopback.cc", "loopback-load")


def newer_headers(include: Path) -> Path:
    """Makes `include` an include folder with the headers of a would-be ABI 1.2, by appending as a future minor would."""
    shutil.copytree(PACKAGE / "include", include)
    header = include / "hvd" / "backend_abi.h"
    text = header.read_text()
    for anchor, addition in [*APPENDED, ("#define HVD_ABI_MINOR 1\n", None)]:
        assert text.count(anchor) == 1, f"the header no longer has exactly one {anchor!r}"
        text = text.replace(anchor, anchor + addition if addition else "#define HVD_ABI_MINOR 2\n")
    header.write_text(text)
    slots = include / "hvd" / "backend_slots.inc"
    rows = "HVD_SLOT(comm, echo, 2, OPTIONAL)\nHVD_SLOT(host, now, 2, OPTIONAL)\n"
    slots.write_text(slots.read_text().replace("#undef HVD_SLOT", rows + "#undef HVD_SLOT"))
    return include


def matrix_hosts(toolchain: Toolchain, newer: Path) -> dict[str, Path]:
    """The program that uses matrix_plugin.cc, by the headers it is compiled with."""
    source = HERE / "matrix_driver.cc"
    return {"old": toolchain.program(source), "new": toolchain.program(source, newer)}


def matrix_plugins(toolchain: Toolchain, newer: Path) -> dict[str, tuple[Path, int]]:
    """The plugin and its minor version, by the headers it is compiled with."""
    source = HERE / "matrix_plugin.cc"
    return {
        "old": (toolchain.library(source, "matrix1"), 1),
        "new": (toolchain.library(source, "matrix2", include=newer), 2),
    }
