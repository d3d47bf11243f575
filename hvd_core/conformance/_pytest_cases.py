"""CommonCases: the kit as pytest tests, for a backend's own test suite. Three lines:

    from hvd_core.conformance import CommonCases

    class TestMine(CommonCases):
        backend = "mine"

Each case is a test, ``test_conformance[L2.allreduce]``. A subclass adds tests of its own, as methods or as cases
(``extra``); it cannot leave out or replace the common ones: what a backend does not do is declared in its capabilities
and its query.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from hvd_core.conformance._cases import all_cases
from hvd_core.conformance._session import Session, resolve
from hvd_core.conformance._verdicts import FAIL, SKIPPED


class CommonCases:
    """Base class of a backend's conformance tests.

    ``backend``: its name, or "module:Class" of one in Python. ``library``: a path to try, not the installed one.
    ``ranks``: how many processes. ``quick``: smaller counts. ``patience``: multiplies time limits. ``extra``: modules
    with cases of one's own. ``environment``: variables for the ranks, such as the backend's options; {rank} in a value is
    each one's own number.
    """

    backend: ClassVar[str] = ""
    library: ClassVar[str | None] = None
    ranks: ClassVar[int] = 4
    quick: ClassVar[bool] = False
    patience: ClassVar[float] = 1.0
    extra: ClassVar[tuple[str, ...]] = ()
    environment: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in ("test_conformance", "conformance_session", "pytest_generate_tests"):
            if name in vars(cls):
                raise TypeError(
                    f"horovod: conformance: {cls.__name__} replaces {name}; the common cases cannot be replaced. Declare "
                    "in capabilities and query what the backend does not serve."
                )

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """pytest calls this for each test of the class: one of test_conformance for each case."""
        if "conformance_case" in metafunc.fixturenames:
            names = [case.name for case in all_cases(type(self).extra)]
            metafunc.parametrize("conformance_case", names)

    @pytest.fixture
    def conformance_session(self, request: pytest.FixtureRequest) -> Session:
        """The ranks, which all tests of a class share; the class ends them."""
        cls = request.cls
        if "_conformance" not in vars(cls):
            cls._conformance = stack = contextlib.ExitStack()
            request.node.getparent(pytest.Class).addfinalizer(stack.close)
            stack.callback(lambda: delattr(cls, "_conformance"))
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name, value in cls.environment.items():
                patch.setenv(name, value)
            cls._session = stack.enter_context(
                Session(
                    resolve(cls.backend, cls.library),
                    cls.ranks,
                    modules=cls.extra,
                    quick=cls.quick,
                    patience=cls.patience,
                    environment=cls.environment,
                )
            )
        session: Session = cls._session
        return session

    def test_conformance(
        self,
        conformance_session: Session,
        conformance_case: str,
        record_property: Callable[[str, object], None],
    ) -> None:
        """One case of the kit."""
        result = conformance_session.run(conformance_case)
        record_property("verdict", result.verdict)
        for row in result.rows:
            record_property(row.what, f"{row.verdict} {row.text}".strip())
        if result.verdict == SKIPPED:
            pytest.skip(result.text)
        bad = [f"  {row.what}: {row.text}" for row in result.rows if row.verdict == FAIL]
        assert result.verdict != FAIL, "\n".join([f"{result.case}: {result.text}", *bad[:20]])
