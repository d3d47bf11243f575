"""The conformance kit: tests whether a backend keeps the contract of hvd/backend_abi.h, and reports what it serves.

    python -m hvd_core.conformance BACKEND -np 4

or, in a vendor's own test suite,

    from hvd_core.conformance import CommonCases

    class TestMine(CommonCases):
        backend = "mine"

Backends are called through their tables directly, with no engine in between. docs/conformance.md has the levels, the
verdicts and the tolerances.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_core.conformance._cases import case
    from hvd_core.conformance._pytest_cases import CommonCases
    from hvd_core.conformance._session import Session, resolve

__all__ = ["CommonCases", "Session", "case", "resolve"]

_PLACES = {"CommonCases": "_pytest_cases", "Session": "_session", "case": "_cases", "resolve": "_session"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value
