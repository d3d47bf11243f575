"""``hvd doctor``: which of its tasks a command line asks for."""

from __future__ import annotations

import argparse
from importlib import import_module


def run(options: argparse.Namespace) -> int:
    """Do the task. Raises ValueError for options that do not go together, and the errors of the task."""
    tasks = {"--bundle": options.bundle}
    asked = next((name for name, value in tasks.items() if value is not None), None)
    if asked is not None and options.name is not None:
        raise ValueError(f"{asked} does not go with the name of a backend ({options.name})")
    if options.log and options.bundle is None:
        raise ValueError("--log FILE goes with --bundle OUT.tar.gz")
    module = "doctor" if asked is None else "bundle"
    return import_module(f"hvd_core.cli.{module}").run(options)
