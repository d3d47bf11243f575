"""Living jobs whose ranks have imported a framework: TensorFlow takes 5 s of processor time per process, PyTorch 2 s. So
one process per framework imports it, and the ranks of all lanes are its children (fork_server.py).

All tests on TensorFlow, those of Keras and of the programs included, share one job for each number of ranks; so do all
tests on PyTorch. A test has a job of its own only where the processes need another environment from their start.
"""

import os
import sys
from pathlib import Path

from . import fork_servers, plain
from .checks import run_on_ranks
from .environment import base
from .job import Outcome

# The programs that XLA compiles are small here and run a few times: XLA's optimizations cost more than the runs.
_XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# Several ranks share few cores; ranks import a framework at different speeds; TensorFlow would print much.
# Threads that wait must leave the cores to others.
_SHARED = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HOROVOD_START_TIMEOUT": "200"}
_ENVIRONMENT = {
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
# An environment with another TensorFlow may run the ranks of its tests.
_PYTHON = {
    "tensorflow": os.environ.get("HVD_TEST_TF_PYTHON", sys.executable),
    "torch": sys.executable,
    "jax": os.environ.get("HVD_TEST_JAX_PYTHON", sys.executable),
    # `make test` makes it, as MXNet needs an older NumPy.
    "mxnet": os.environ.get("HVD_TEST_MXNET_PYTHON", str(Path(sys.prefix) / "mxnet" / "bin" / "python")),
}
# What ranks begin with. A child could not begin with a module of ours: tests want its import, its engine, its library.
_DATA = ("sklearn.datasets", "sklearn.model_selection")
_ALSO = ("keras", *_DATA, "tqdm", "h5py", "pytest", "stevedore.driver", "tomllib", "encodings.idna")
_MODULES = {
    "tensorflow": ("tensorflow", *_ALSO),
    "torch": ("torch", "torch._dynamo", "functorch.compile", *_ALSO),
    "mxnet": ("mxnet_names", "mxnet", *_DATA, "pytest"),
    # A process can be forked until JAX has started a device.
    "jax": ("jax", "jax.numpy", "optax", *_ALSO),
}


def python_with(framework: str, process_env: dict[str, str] | None = None) -> list[str]:
    """The words that stand for an interpreter which has imported a framework: those of a fork server's client.

    process_env: variables for the imports, in addition to those of the framework's jobs.
    """
    environment = {**base(), **_ENVIRONMENT[framework], **(process_env or {})}
    return fork_servers.interpreter(_MODULES[framework], environment, _PYTHON[framework])


def launcher(framework: str, ranks: int) -> list[str]:
    """The words of horovodrun and of python_with(), in front of a program that is to run on `ranks` ranks."""
    python = _PYTHON[framework]
    words = plain.python() if python == sys.executable else [python]
    return [*words, "-m", "horovod.runner.launch", "-np", str(ranks), *python_with(framework)]


def torchrun(*options: str) -> list[str]:
    """The words of torchrun with two ranks, in a process that has PyTorch already; a program comes behind them. Its ranks
    are interpreters, and its children."""
    return [*python_with("torch"), "-m", "torch.distributed.run", "--nproc-per-node", "2", *options]


# Options of torchrun: it begins at once, as it looks for no other agents. That search takes 1 s of processor time where
# torchrun has many modules. Ranks get a MASTER_PORT that is not to be used.
ONE_AGENT = ("--master-port", "0")


def mxnet_python() -> str:
    """The interpreter with MXNet."""
    return _PYTHON["mxnet"]


def why_no_mxnet() -> str:
    """The reason why tests on MXNet cannot run here; "" if they can."""
    python = mxnet_python()
    return (
        ""
        if os.path.exists(python)
        else f"no MXNet in an environment of its own ({python}); `make test` makes it"
    )


def environment_of(framework: str) -> dict[str, str]:
    """The variables of a framework's jobs."""
    return dict(_ENVIRONMENT[framework])


def run_with(
    framework: str,
    ranks: int,
    function: str,
    *arguments,
    process_env: dict[str, str] | None = None,
    timeout: float = 400.0,
    **options,
) -> Outcome:
    """run_on_ranks() with a framework in the ranks; `function` is text such as "torch/ranks_ops.py::check_x".

    process_env: variables that differ from the environment of the framework's other jobs. They are set after the import
        of the framework, so they cost only forks.
    Raises RanksFailed.
    """
    return run_on_ranks(
        ranks,
        function,
        *arguments,
        process_env={**_ENVIRONMENT[framework], **(process_env or {})},
        command=launcher(framework, ranks),
        kind=framework,
        timeout=timeout,
        **{"init": f"horovod.{framework}", **options},
    )


def run_check(framework: str, ranks: int, folder: str, module: str, check: str, **options) -> Outcome:
    """Executes a check of tests/`folder`/`module`.py on living ranks; the options are those of run_with().

    The module is imported by the ranks when the engine is initialised, so that it may ask for its rank.
    """
    function = "harness/framework_rank.py::call_check"
    return run_with(framework, ranks, function, folder, module, check, **options)
