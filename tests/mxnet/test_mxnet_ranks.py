"""The checks of ranks_mxnet_*.py on living ranks, in the environment with MXNet that `make test` makes."""

import subprocess
import sys

import pytest

from harness import environment
from harness.checks import check_names, run_check
from harness.frameworks import environment_of, python_of, why_no_mxnet

MODULES = ["ranks_mxnet_ops", "ranks_mxnet_training"]
CASES = [(ranks, m, c) for ranks in (2, 3, 1) for m in MODULES for c in check_names(f"mxnet/{m}.py")]
# The others repeat what runs on two ranks.
OFTEN = {
    "check_alltoall_with_splits",
    "check_reducescatter",
    "check_moves",
}


def marks(ranks, check):
    return () if ranks == 2 or (ranks == 3 and check in OFTEN) else pytest.mark.slow


needs_mxnet = pytest.mark.skipif(bool(why_no_mxnet()), reason=why_no_mxnet() or "-")


@needs_mxnet
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("ranks", "module", "check"),
    [
        pytest.param(*case, id=f"{case[1]}-{case[0]}-{case[2]}", marks=marks(case[0], case[2]))
        for case in CASES
    ],
)
def test_check(ranks, module, check):
    run_check("mxnet", ranks, "mxnet", module, check, init_options={"process_sets": "dynamic"})


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
