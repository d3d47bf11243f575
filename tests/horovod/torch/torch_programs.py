"""Runs a program of programs/ as if it were the script. Called by test_torch_programs.py on living ranks."""

import runpy
import sys
from pathlib import Path
from unittest import mock

import torch


def run(name, out):
    """The program computes in float64; its rank 0 saves its results in the file `out`."""
    path = Path(__file__).with_name("programs") / f"{name}.py"
    before = torch.get_default_dtype()
    try:
        with mock.patch.object(sys, "argv", [str(path), "--dtype", "float64", "--out", out]):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_default_dtype(before)
