"""Tests whose bodies use PyTorch in one process, and no engine. A lane of pytest does not import PyTorch: that takes
seconds, and from then on each fork of the lane copies more.
"""

import functools
import inspect

from harness import run_on_ranks
from harness.frameworks import environment_of, python_with


def call_in_one_process(function, *arguments, kind="torch in one process"):
    """The function's result and its output, in a living process that PyTorch is imported in and that has no launcher.

    function: as for run_on_ranks(). kind: each kind is a process.
    """
    options = {"command": python_with("torch"), "process_env": environment_of("torch"), "kind": kind}
    done = run_on_ranks(1, function, *arguments, init=None, timeout=280, **options)
    return done.results[0], done.output


def in_one_process(body):
    """Decorator: the test's body is executed there. Its arguments are pytest's parameters, not its fixtures."""

    @functools.wraps(body)
    def test(**parameters):
        call_in_one_process(body, *inspect.signature(body).bind(**parameters).args)

    test.on_ranks_body = body
    return test
