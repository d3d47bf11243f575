"""The command ``hvd``: lists, examines and tests backends, and writes the project of a new one.

One module per verb, imported when the verb is used, so that ``hvd --help`` takes little more than the start of Python.
Exit codes are in ``hvd_core._cli.output``.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv[1:]`` when None) and return its exit code."""
    from hvd_core._cli.command import run

    return run(arguments)
