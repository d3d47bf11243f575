"""How the ranks of tests with a framework are started: variables, interpreter, launcher.

All tests on a framework with the same number of ranks and the same variables share living ranks (pool.py), as an import
of TensorFlow takes 5 s of processor time, of PyTorch 2 s.
"""

import os
import sys
from pathlib import Path

# The programs that XLA compiles are small here and run a few times: XLA's optimizations cost more than the runs.
_XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# Several ranks share few cores; ranks import a framework at different speeds. Threads that wait must leave the cores to
# others.
_SHARED = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HOROVOD_START_TIMEOUT": "200"}
_ENVIRONMENT = {
    "": {},
    "tensorflow": {
        **_SHARED,
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "XLA_FLAGS": _XLA_FLAGS,
        # Without it XLA leaves alone on the CPU what is not told to be compiled.
        "TF_XLA_FLAGS": "--tf_xla_cpu_global_jit",
        "CUDA_VISIBLE_DEVICES": "",
        "KERAS_BACKEND": "tensorflow",
    },
    "torch": {
        **_SHARED,
        # The delay of the simulated device in microseconds: late enough that an operation which does not wait reads what
        # was there before; small enough for thousands of copies.
        "TOPS_SIM_DELAY_US": "200",
        "CUDA_VISIBLE_DEVICES": "",
        "KERAS_BACKEND": "torch",
    },
    "jax": {**_SHARED, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": _XLA_FLAGS, "KERAS_BACKEND": "jax"},
    # The checkout is on the path of that environment, not installed in it.
    "mxnet": {**_SHARED, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
}
# An environment with another version may run the ranks.
_PYTHON = {
    "tensorflow": os.environ.get("HVD_TEST_TF_PYTHON", sys.executable),
    "jax": os.environ.get("HVD_TEST_JAX_PYTHON", sys.executable),
    # `make test-all` makes it, as MXNet needs an older NumPy.
    "mxnet": os.environ.get("HVD_TEST_MXNET_PYTHON", str(Path(sys.prefix) / "mxnet" / "bin" / "python")),
}


def python_of(framework: str = "") -> str:
    """The interpreter with a framework."""
    return _PYTHON.get(framework, sys.executable)


def horovodrun(ranks: int, *options: str, framework: str = "") -> list[str]:
    """The words of horovodrun and of the framework's interpreter, in front of a program that runs on `ranks` ranks."""
    words = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
    return [*words, *options, python_of(framework)]


def torchrun(*options: str) -> list[str]:
    """The words of torchrun with two ranks; a program comes behind them."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *options]


# Options of torchrun: it begins at once, as it looks for no other agents. Ranks get a MASTER_PORT that is not to be used.
ONE_AGENT = ("--master-port", "0")


def why_no_mxnet() -> str:
    """The reason why tests on MXNet cannot run here; "" if they can."""
    if os.path.exists(python_of("mxnet")):
        return ""
    return f"no MXNet in an environment of its own ({python_of('mxnet')}); `make test-all` makes it"


def environment_of(framework: str, process_env: dict[str, str] | None = None) -> dict[str, str]:
    """The variables of a framework's ranks, and those that a test adds."""
    return {**_ENVIRONMENT[framework], **(process_env or {})}
