"""Libraries with NCCL's and the driver's names in them and little behind: enough to be found, looked at and refused."""

import re
import shutil
from pathlib import Path

import hvd_core
from compiled import cc, compiled

FUNCTIONS = Path(hvd_core.__file__).resolve().parents[1] / "backends" / "nccl" / "csrc" / "nccl_functions.inc"


def _library(path, code, *words):
    """A shared object of C code, at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(code)
    shutil.copy(compiled("stand_in.so", [cc(), "-shared", "-fPIC", "-w"], [source], after=words), path)
    return path


def nccl(path, version, without=(), soname="libnccl.so.2"):
    """An NCCL of that version code, without some functions."""
    names = re.findall(r"NCCL_(?:OPTIONAL_)?FUNCTION\((\w+)", FUNCTIONS.read_text())
    assert "ncclAllReduce" in names
    code = f"int ncclGetVersion(int* v) {{ *v = {version}; return 0; }}\n"
    code += "".join(f"int {n}() {{ return 3; }}\n" for n in names if n not in ("ncclGetVersion", *without))
    return _library(path, code, f"-Wl,-soname,{soname}")


def cuda(path, version):
    """A driver for that version of CUDA. A process that initialises it ends."""
    code = f"int cuDriverGetVersion(int* v) {{ *v = {version}; return 0; }} int cuInit(unsigned f) {{ _exit(99); }}"
    return _library(path, code)


def wheel(site, version, code, cuda_major):
    """nvidia-nccl-cuNN as pip leaves it."""
    (site / f"nvidia_nccl_cu{cuda_major}-{version}.dist-info").mkdir(parents=True)
    return nccl(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", code)
