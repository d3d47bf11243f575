"""The kit is tested by backends with one fault each: the case that must notice fails, and says what is wrong."""

import re
from pathlib import Path

import pytest

from hvd_core.conformance._session import Session, Target
from hvd_core.conformance._verdicts import EMULATED, FAIL, PASS
from mutant_table import FAST, SLOW, SOUND, rows

pytestmark = pytest.mark.timeout(400)
ALL = rows(FAST) + rows(SLOW)
# Slots that the backends lack and a case needs, added without a fault.
HARMLESS = {"L4.split": "split_is_create", "L2.registered": "register_is_nothing"}


@pytest.fixture(autouse=True)
def no_names_left():
    yield
    for left in Path("/dev/shm").glob("hvd-mutant-*"):
        left.unlink(missing_ok=True)


def verdict(shim, library, fault, backend, case, monkeypatch):
    monkeypatch.setenv("HVD_MUTANT_LIBRARY", str(library))
    monkeypatch.setenv("HVD_MUTANT", fault)
    with Session(Target(backend, str(shim), "--library"), 2, quick=True) as session:
        return session.run(case)


@pytest.mark.parametrize(
    ("fault", "backend", "case"),
    [
        *(pytest.param(*row, id=" ".join(row)) for row in rows(FAST)),
        *(pytest.param(*row, id=" ".join(row), marks=pytest.mark.slow) for row in rows(SLOW)),
    ],
)
def test_fault_is_caught(shim, library_of, monkeypatch, fault, backend, case):
    result = verdict(shim, library_of(backend), fault, backend, case, monkeypatch)
    assert result.verdict == FAIL, f"{case} lets '{fault}' pass: {result}"
    assert result.text, "a failure says what is wrong"
    if fault.startswith("hangs_in_"):
        assert f"the call {fault.removeprefix('hangs_in_')} has not come back within" in result.text


@pytest.mark.parametrize(
    ("what", "backend", "case"),
    [
        pytest.param(
            *row,
            id=" ".join(row),
            marks=[pytest.mark.slow] * (row[2] not in ("L3.calls", "L0.query")),
        )
        for row in rows(SOUND)
    ],
)
def test_what_is_no_fault_passes(shim, library_of, monkeypatch, what, backend, case):
    result = verdict(shim, library_of(backend), what, backend, case, monkeypatch)
    assert result.verdict == PASS, result
    if case == "L3.calls":
        assert "ms" in next(row.text for row in result.rows if row.what == "slowest calls")
    if (
        case == "L5.latency"
    ):  # no fault, but told: each call sleeps for 150 ms, and collective may finish the operation
        told = next(row.text for row in result.rows if row.what.startswith("one float32"))
        assert float(told.split(" us; shm")[0]) > 140_000, told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "case"), [pytest.param(*row, id=" ".join(row)) for row in sorted({row[1:] for row in ALL})]
)
def test_control_without_a_fault(shim, library_of, monkeypatch, backend, case):
    """The same cases through the same shim: what they catch is the fault, not the shim."""
    fault = HARMLESS.get(case, "")
    result = verdict(shim, library_of(backend), fault, backend, case, monkeypatch)
    assert result.verdict in (PASS, EMULATED), result


def test_every_fault_has_a_row():
    written = set()
    for source in (Path(__file__).parent / "mutants").glob("*.cc"):
        written |= set(re.findall(r'Add \w+\(\s*"(\w+)"', source.read_text()))
    assert written == {what for what, _, _ in ALL + rows(SOUND)} | set(HARMLESS.values())
    assert len(written) >= 25


def test_every_level_catches_something():
    assert {case.split(".")[0] for _, _, case in ALL} == {"L0", "L1", "L2", "L3", "L4", "L5"}
