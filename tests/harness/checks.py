"""For tests whose bodies are functions check_* of modules that only the ranks import."""

from __future__ import annotations

import re
from pathlib import Path

from .job import Outcome
from .run import run_on_ranks

TESTS = Path(__file__).resolve().parents[1]


def check_names(module: str) -> list[str]:
    """Names of the functions check_* of a module such as "torch/ranks_basics.py", in the order of the file; it is not
    imported."""
    return re.findall(r"^def (check_\w+)", (TESTS / module).read_text(), re.MULTILINE)


def run_with(framework: str, ranks: int, function, *arguments, **options) -> Outcome:
    """run_on_ranks() with a framework in the ranks; `function` is text such as "torch/ranks_ops.py::check_x"."""
    return run_on_ranks(ranks, function, *arguments, framework=framework, **options)


def run_check(framework: str, ranks: int, folder: str, module: str, check: str, **options) -> Outcome:
    """Executes a check of tests/`folder`/`module`.py on living ranks; the options are those of run_on_ranks().

    The module is imported by the ranks when the engine is initialised, so that it may ask for its rank.
    """
    function = "harness/framework_rank.py::call_check"
    return run_with(framework, ranks, function, folder, module, check, **options)
