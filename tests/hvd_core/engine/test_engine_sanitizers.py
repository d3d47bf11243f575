"""Whole engines in one process under ThreadSanitizer and Address/UB-Sanitizer: what `make sanitize` runs.

The programs are in native/stress: random work from many threads in every way that a job can end, with all values checked,
and spoiled messages.
"""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("native") / "stress" / "sanitize.py"
SECONDS = 60


def load():
    spec = importlib.util.spec_from_file_location("sanitize", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a first build takes minutes
@pytest.mark.parametrize("kind", ["thread", "address"])
def test_clean_under(kind):
    sanitize = load()
    for command in sanitize.commands(sanitize.build(kind), SECONDS, seed=1):
        passed, output = sanitize.run(command, SECONDS + 300)
        assert passed, f"{' '.join(command)}\n{output[-12000:]}"
