"""The variables with which every job of the tests begins: what a test sets by monkeypatch is not for others."""

import os

_base: dict[str, str] | None = None


def remember() -> None:
    """Called once, when the session has cleaned its environment (conftest.py)."""
    global _base
    _base = dict(os.environ)


def base() -> dict[str, str]:
    return dict(_base or os.environ)
