"""The command ``hvd``: lists, examines and tests backends, writes the project of a new one, and looks at jobs.

One module per verb. To add a verb, write a module with

- ``add_arguments(parser: argparse.ArgumentParser) -> None``, which adds its options, and
- ``run(options: argparse.Namespace) -> int``, which returns one of the exit codes of ``output``,

and add a line to ``VERBS`` in ``command``. The module is imported when the verb is used, so that ``hvd --help`` takes
little more than the start of Python. An error that the user can fix is a ValueError, OSError or BackendError.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv[1:]`` when None) and return its exit code."""
    from hvd_core._cli.command import run

    return run(arguments)
