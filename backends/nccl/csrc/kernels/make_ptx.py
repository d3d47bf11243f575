"""Writes generated/kernels.ptx: the kernels as text in an old version of NVIDIA's virtual machine language (PTX).

The driver compiles it for devices without machine code in the wheel, and in wheels that were built without nvcc.

    python make_ptx.py --include ../../../../hvd_core/include      # after each change to the kernels; needs nvcc

nvcc names the language's newest version in what it writes, and drivers refuse a version that they do not know. But
nothing newer than 6.0 (CUDA 9, Pascal) is in it, which an old assembler can confirm: name it with --ptxas.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("kernels.cu", "copy_scale.h", "elements.h", "kernel_args.h", "memory.h", "reduce.h")
FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-arch=compute_75", "-ptx")
VERSION, TARGET = "6.0", "sm_60"


def digest():
    """Of the sources that the text is made from."""
    whole = hashlib.sha256()
    for name in SOURCES:
        whole.update((HERE / name).read_bytes())
    return whole.hexdigest()


def release(nvcc):
    """What the compiler calls itself: "13.0, V13.0.88"."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"release (.+)", said)[1]


def make(nvcc, include):
    """The text."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.ptx"
        subprocess.run([nvcc, *FLAGS, f"-I{include}", HERE / "kernels.cu", "-o", out], check=True)
        text = out.read_text()
    lines = [line.rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("//")]
    text = "\n".join(lines) + "\n"
    text, versions = re.subn(r"^\.version .*$", f".version {VERSION}", text, flags=re.M)
    text, targets = re.subn(r"^\.target .*$", f".target {TARGET}", text, flags=re.M)
    if (versions, targets) != (1, 1):
        raise SystemExit("this compiler's PTX begins in another way than expected")
    head = f"// Made by make_ptx.py with nvcc {release(nvcc)}; do not edit.\n// Sources: {digest()}\n"
    return head + text


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--nvcc", default="nvcc")
    options.add_argument("--include", required=True, help="where hvd/backend_abi.h lies")
    options.add_argument("--output", default=HERE / "generated" / "kernels.ptx", type=Path)
    options.add_argument("--ptxas", action="append", default=[], help="an old assembler to try the text with")
    chosen = options.parse_args()
    chosen.output.write_text(make(chosen.nvcc, chosen.include))
    for assembler in chosen.ptxas:
        command = [assembler, f"-arch={TARGET}", chosen.output, "-o", "/dev/null"]
        if subprocess.run(command).returncode != 0:
            sys.exit(f"{assembler} refuses the text")


if __name__ == "__main__":
    main()
