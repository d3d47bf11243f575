"""Ranks that hang, die or stumble: what a session makes of them, and that the next case has good ones again."""

import os
import signal

import pytest

from hvd_core.conformance._session import Session, Target, resolve
from hvd_core.conformance._verdicts import FAIL, PASS, SKIPPED

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def session():
    with Session(resolve("shm"), 2, modules=["own_cases"], quick=True) as made:
        yield made


def test_own_case(session):
    result = session.run("X.adds_up")
    assert result.verdict == PASS and [r.text for r in result.rows] == ["2"]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("X.hangs", "rank 1: did not end within 5 s"),
        ("X.dies", "rank 1: died: it was killed by SIGSEGV"),
        ("X.raises", "rank 1: rank 1 does not like it"),
        ("X.stumbles", "ranks 0, 1: KeyError: 'nothing' (own_cases.py:"),
    ],
)
def test_trouble_is_told_and_ends_with_its_case(session, case, text):
    result = session.run(case)
    assert result.verdict == FAIL and text in result.text
    assert session.run("X.adds_up").verdict == PASS


def test_a_process_that_dies_between_two_cases_fails_the_next_one():
    with Session(resolve("shm"), 2, quick=True) as made:
        assert made.run("L0.tables").verdict == PASS
        made._single._children[0].signal(signal.SIGKILL)
        made._single._children[0].wait(60)
        result = made.run("L0.symbol")
        assert result.verdict == FAIL
        assert "was killed by SIGKILL, perhaps because of the case before it, L0.tables" in result.text
        assert made.run("L0.symbol").verdict == PASS


def test_skipped_says_why(session):
    result = session.run("X.cannot")
    assert (result.verdict, result.text) == (SKIPPED, "there is no such thing on this machine")
    result = session.run("X.needs_many")
    assert (result.verdict, result.text) == (SKIPPED, "needs 64 ranks; start the kit with -np 64")


def test_a_library_that_is_no_backend(tmp_path):
    path = tmp_path / "libnothing.so"
    path.write_bytes(b"this is no library")
    with Session(Target("nothing", str(path), "--library"), 2) as broken:
        result = broken.run("L0.symbol")
        assert result.verdict == FAIL and "does not open" in result.text
        for case in ("L2.barrier", "L3.threads"):
            result = broken.run(case)
            assert result.verdict == FAIL and "the ranks do not open the backend" in result.text


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["minimal", "chaos", "fake_sync"])
def test_backends_that_have_little(backend, minimal_library, fake_sync_library, monkeypatch):
    """One type, few elements in a call, aligned addresses; one in Python; one with a device and no communicator."""
    monkeypatch.setenv("HOROVOD_BACKEND_MINIMAL_ALIGNMENT", "64")
    monkeypatch.setenv("HOROVOD_BACKEND_MINIMAL_MAX_COUNT", "5000")
    library = {"minimal": minimal_library, "fake_sync": fake_sync_library}.get(backend)
    with Session(resolve(backend, library), 3, quick=True) as made:
        results = [made.run(name) for name in made.cases if name.startswith("L")]
    assert [r for r in results if r.verdict == FAIL] == []
    assert any(r.verdict == PASS for r in results)


def test_nothing_is_left_running():
    with Session(resolve("shm"), 2, quick=True) as made:
        assert made.run("L2.barrier").verdict == PASS
        assert made.run("L0.tables").verdict == PASS
        pids = [child.pid for child in (*made.ranks._children, *made._single._children)]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
