"""The kernels of backends/nccl as a library for the host, made with the driver of test_nccl_kernels.py."""

from pathlib import Path

from compiled import compiled, cxx

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "backends" / "nccl" / "csrc" / "kernels"
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")


def build():
    """The library (build/ keeps it)."""
    sources = [
        ROOT / "tests/backends/nccl" / "kernels" / "kernels_driver.cc",
        *(KERNELS / name for name in ("copy_launch.cc", "kernels_host.cc")),
    ]
    return compiled("libkernels.so", [cxx(), *FLAGS], sources, [ROOT / "hvd_core" / "include", KERNELS])
