"""The command ``hvd``: what is installed, what is wrong with it, and the start of a backend of one's own.

One module per verb; each is imported when it is asked for, so that ``hvd --help`` costs an interpreter's start and
little more. Exit codes are in ``hvd_core.cli.codes``.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv[1:]`` when None) and return its exit code."""
    from hvd_core.cli.command import run

    return run(arguments)
