"""Libraries that the kit's own tests examine: a shim that spoils another backend, and backends that lack nearly all."""

from pathlib import Path

from compiled import ROOT, compiled, cxx

HERE = Path(__file__).parent
BACKENDS = ROOT / "tests/backends/host"


def _library(name: str, *sources: Path) -> Path:
    """A shared object against the public headers, with warnings as errors."""
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
    return compiled(name, [cxx(), *flags], sources, [ROOT / "hvd_core" / "include"], ["-pthread", "-ldl"])


def shim() -> Path:
    """The library that spoils another one; see mutants/shim.cc."""
    return _library("libshim.so", *sorted((HERE / "mutants").glob("*.cc")))


def fake_sync() -> Path:
    """The backend with only a device table, whose memory the host must not touch."""
    return _library("libfake_sync.so", BACKENDS / "fake_sync" / "fake_sync.cc")


def minimal() -> Path:
    """The backend with three collectives of one type."""
    return _library("libminimal.so", BACKENDS / "minimal" / "minimal.cc")
