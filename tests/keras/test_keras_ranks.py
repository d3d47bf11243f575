"""The checks of ranks_keras_*.py on 1, 2 and 3 ranks, for each kind of Keras. One job each, started by the first test
that needs it."""

import functools
import importlib.util

import pytest

pytest.importorskip("keras")

from keras_launch import Report, checks_of

MODULES = [
    "ranks_keras_optimizer",
    "ranks_keras_more",
    "ranks_keras_callbacks",
    "ranks_keras_values",
]
FRAMEWORK = {"torch": "torch", "tensorflow": "tensorflow", "tf.keras": "tensorflow"}
JOBS = {(kind, ranks): MODULES for kind in ("torch",) for ranks in (1, 2, 3)}
CASES = [
    (kind, ranks, module, c) for (kind, ranks), ms in JOBS.items() for module in ms for c in checks_of(module)
]


@functools.cache
def report(kind, ranks):
    return Report(JOBS[kind, ranks], ranks, kind, timeout=280)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "ranks", "module", "check"), CASES, ids=["-".join(map(str, c)) for c in CASES]
)
def test_check(kind, ranks, module, check):
    if importlib.util.find_spec(FRAMEWORK[kind]) is None:
        pytest.skip(f"Keras on {FRAMEWORK[kind]} needs that framework, which is not installed")
    report(kind, ranks).verify(module, check)
