"""Imports of horovod.keras and horovod.tensorflow change nothing of Keras and TensorFlow; init() does. A training loads
no other framework than its own."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.frameworks import environment_of, python_of
from harness.installed import need


@pytest.mark.parametrize(
    ("framework", "module"),
    [
        ("torch", "horovod.keras"),
        ("tensorflow", "horovod.keras"),
        pytest.param("jax", "horovod.keras", marks=pytest.mark.slow),
        pytest.param("tensorflow", "horovod.tensorflow.keras", marks=pytest.mark.slow),
        pytest.param("tensorflow", "horovod.tensorflow", marks=pytest.mark.slow),
    ],
)
def test_the_import_leaves_keras_alone(framework, module):
    need(framework)
    program = Path(__file__).with_name("import_leaves_keras_alone.py")
    done = subprocess.run(
        [python_of(framework), program, module],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment_of(framework)},
    )
    assert done.returncode == 0, done.stderr
