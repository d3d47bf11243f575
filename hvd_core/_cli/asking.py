"""``hvd doctor``: which of its tasks a command line asks for."""

from __future__ import annotations

import argparse
from importlib import import_module


def run(options: argparse.Namespace) -> int:
    """Do the task. Raises ValueError for options that do not go together, and the errors of the task."""
    given = {"--bundle": options.bundle, "--pid": options.pid, "--job": options.job}
    asked = [name for name, value in given.items() if value is not None]
    if "--pid" in asked and len(asked) > 1:
        raise ValueError("--pid goes with no other question: name it alone")
    if asked and options.name is not None:
        raise ValueError(f"{asked[0]} does not go with the name of a backend ({options.name})")
    if options.log and options.bundle is None:
        raise ValueError("--log FILE goes with --bundle OUT.tar.gz")
    module = {"--bundle": "bundle", "--pid": "running", "--job": "running"}
    return import_module(f"hvd_core._cli.{module[asked[0]] if asked else 'doctor'}").run(options)
