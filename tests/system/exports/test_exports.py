"""What each public module exports, compared with the lists beside this file: programs import these names.

A list changes only on purpose. This command writes the lists anew: python tests/system/exports/test_exports.py
"""

import difflib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from list_exports import text_of

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))  # for the command above
from harness.frameworks import environment_of, python_of, why_no_mxnet  # noqa: E402

# The modules of each list.
WITHOUT_FRAMEWORK = [
    *(
        "hvd_core",
        "hvd_core.errors",
        "hvd_core.numpy_api",
    ),
    *("hvd_core.backends", "hvd_core.conformance"),
    *("horovod", "horovod.runner", "horovod.common.basics", "horovod.common.exceptions"),
    *("horovod.common.process_sets", "horovod.common.util"),
    *("horovod.runner.launch", "horovod.runner.mpi_run", "horovod.runner.gloo_run"),
    *(
        f"horovod.runner.common.util.{name}"
        for name in ("hosts", "safe_shell_exec", "secret", "settings", "timeout")
    ),
    *("horovod.runner.util.network", "horovod.runner.util.threads"),
    *("horovod.spark", "horovod.spark.common.backend", "horovod.spark.common.store"),
]
TORCH = [
    "horovod.torch",
    *(
        f"horovod.torch.{name}"
        for name in ("mpi_ops", "compression", "functions", "optimizer", "sync_batch_norm")
    ),
    *("horovod.torch.elastic", "horovod.torch.elastic.state", "horovod.torch.elastic.sampler"),
]
TENSORFLOW = [
    "horovod.tensorflow",
    *(
        f"horovod.tensorflow.{name}"
        for name in ("mpi_ops", "compression", "functions", "util", "sync_batch_norm")
    ),
    *("horovod.tensorflow.gradient_aggregation", "horovod.tensorflow.gradient_aggregation_eager"),
    "horovod.tensorflow.elastic",
]
JAX = [
    "horovod.jax",
    *(f"horovod.jax.{name}" for name in ("mpi_ops", "compression", "functions", "optimizer")),
    "horovod.jax.elastic",
]
MXNET = ["horovod.mxnet", *(f"horovod.mxnet.{name}" for name in ("mpi_ops", "compression", "functions"))]
KERAS = [
    *("horovod.tensorflow.keras", "horovod.tensorflow.keras.callbacks", "horovod.tensorflow.keras.elastic"),
    *("horovod.keras", "horovod.keras.callbacks", "horovod.keras.elastic"),
    *("horovod._keras", "horovod._keras.compression"),
]


def listed_by_a_process(framework: str, modules: list[str]) -> str:
    """The text of these modules. A process of its own, since frameworks are not loaded into the tests' process."""
    program = subprocess.run(
        [python_of(framework), str(HERE / "list_exports.py"), *modules],
        capture_output=True,
        text=True,
        env=os.environ | environment_of(framework),
        timeout=200,
    )
    assert program.returncode == 0, program.stderr
    return program.stdout


def compare(file: str, now: str) -> None:
    before = (HERE / file).read_text(encoding="utf-8")
    changes = difflib.unified_diff(before.splitlines(), now.splitlines(), file, "now", lineterm="", n=1)
    assert now == before, "exports have changed:\n" + "\n".join(changes)


def test_modules_without_a_framework():
    compare("without_framework.txt", text_of(WITHOUT_FRAMEWORK))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch():
    compare("torch.txt", listed_by_a_process("torch", TORCH))


@pytest.mark.skipif(importlib.util.find_spec("optax") is None, reason="JAX is not installed")
def test_jax():
    compare("jax.txt", listed_by_a_process("jax", JAX))


@pytest.mark.skipif(bool(why_no_mxnet()), reason=why_no_mxnet() or "-")
def test_mxnet():
    compare("mxnet.txt", listed_by_a_process("mxnet", MXNET))


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflow_and_keras():
    text = listed_by_a_process("tensorflow", TENSORFLOW + KERAS)
    start = text.index(f"[{KERAS[0]}]")
    compare("tensorflow.txt", text[:start].rstrip("\n") + "\n")
    compare("keras.txt", text[start:])


if __name__ == "__main__":
    (HERE / "without_framework.txt").write_text(text_of(WITHOUT_FRAMEWORK), encoding="utf-8")
    (HERE / "torch.txt").write_text(listed_by_a_process("torch", TORCH), encoding="utf-8")
    (HERE / "jax.txt").write_text(listed_by_a_process("jax", JAX), encoding="utf-8")
    (HERE / "mxnet.txt").write_text(listed_by_a_process("mxnet", MXNET), encoding="utf-8")
    (HERE / "tensorflow.txt").write_text(listed_by_a_process("tensorflow", TENSORFLOW), encoding="utf-8")
    (HERE / "keras.txt").write_text(listed_by_a_process("tensorflow", KERAS), encoding="utf-8")
