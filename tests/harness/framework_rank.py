"""What the ranks of frameworks.py execute."""

import importlib
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def call_check(folder, module, name):
    """Calls a check of tests/`folder`/`module`.py, after the module's begin_check() if it has one, and waits until all
    ranks are through with it."""
    path = str(TESTS / folder)
    if path not in sys.path:
        sys.path.insert(0, path)
    checks = importlib.import_module(module)
    getattr(checks, "begin_check", lambda: None)()
    getattr(checks, name)()
    end_together()


def end_together():
    """The next call begins with the engine's shutdown, which would end the job for a rank that still works."""
    import hvd_core

    if hvd_core.is_initialized():
        hvd_core.barrier()
