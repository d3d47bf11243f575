"""Tests whose bodies use PyTorch in one process, and no engine."""

import pytest

from harness import run_on_ranks

in_one_process = pytest.mark.ranks(1, framework="torch", init=None)


def call_in_one_process(function, *arguments, **options):
    """The function's result and its output, in a living process."""
    done = run_on_ranks(1, function, *arguments, framework="torch", init=None, **options)
    return done.results[0], done.output
