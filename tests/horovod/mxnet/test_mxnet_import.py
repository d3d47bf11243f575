"""Imports of horovod.mxnet with and without MXNet: it is in an environment of its own, which `make test` makes."""

import subprocess
import sys

import pytest

from harness import environment
from harness.frameworks import environment_of, python_of, why_no_mxnet

needs_mxnet = pytest.mark.skipif(bool(why_no_mxnet()), reason=why_no_mxnet() or "-")


def test_says_what_to_install_with_a_newer_numpy():
    """This interpreter's NumPy is too new for MXNet, and MXNet is not there."""
    program = subprocess.run(
        [sys.executable, "-c", "import horovod.mxnet"], capture_output=True, text=True, timeout=100
    )
    assert program.returncode == 1
    assert "ImportError" in program.stderr and "pip install 'mxnet==1.9.1' 'numpy<2'" in program.stderr


@needs_mxnet
def test_numpy_names_that_exist_stay():
    text = (
        "import numpy as np; np.int = 'mine'; import horovod.mxnet as hvd, mxnet as mx; assert np.int == 'mine'; "
        "hvd.init(); assert hvd.allreduce(mx.nd.ones((2,))).asnumpy().sum() == 2"
    )
    env = {**environment.base(), **environment_of("mxnet")}
    program = subprocess.run(
        [python_of("mxnet"), "-c", text], capture_output=True, text=True, timeout=200, env=env
    )
    assert program.returncode == 0, program.stderr
