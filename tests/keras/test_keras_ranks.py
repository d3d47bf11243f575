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
    "ranks_keras_gradients",
    "ranks_keras_callbacks",
    "ranks_keras_values",
]
FRAMEWORK = {"torch": "torch", "tensorflow": "tensorflow", "tf.keras": "tensorflow"}
# All checks run on two ranks; on other numbers of ranks only those that depend on it. TensorFlow takes several times as
# long as PyTorch.
JOBS = {
    ("torch", 1): MODULES[3:4],
    ("torch", 2): MODULES,
    ("torch", 3): MODULES[1:3],
    ("tensorflow", 2): MODULES[:3],
    ("tf.keras", 2): MODULES[3:],
}
SLOW = (
    {("torch", 4): MODULES}
    | {("tensorflow", ranks): MODULES for ranks in (1, 3)}
    | {("tf.keras", 3): MODULES}
)
CASES = [
    pytest.param(kind, ranks, module, check, id=f"{kind}-{ranks}-{module}-{check}", marks=marks)
    for jobs, marks in ((JOBS, ()), (SLOW, pytest.mark.slow))
    for (kind, ranks), modules in jobs.items()
    for module in modules
    for check in checks_of(module)
]


@functools.cache
def report(kind, ranks):
    return Report({**JOBS, **SLOW}[kind, ranks], ranks, kind, timeout=880)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "ranks", "module", "check"), CASES)
def test_check(kind, ranks, module, check):
    found = importlib.util.find_spec(FRAMEWORK[kind])
    if found is None or found.origin is None:  # it may be a folder of tests
        pytest.skip(f"Keras on {FRAMEWORK[kind]} needs that framework, which is not installed")
    report(kind, ranks).verify(module, check)
