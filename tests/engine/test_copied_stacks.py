"""Stacks that are read without the GIL, from copies of the process, while bytecode runs: no copy harms the process."""

import sys
import threading
from collections.abc import Iterator

import pytest

from hvd_core import _core

COPIES = 300

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] not in ((3, 11), (3, 12)), reason="other Pythons do not export what reads the stacks"
)


def _numbers(count: int) -> Iterator[int]:
    yield from range(count)


def _deep(levels: int) -> int:
    if levels == 0:
        return sum(_numbers(3))
    try:
        return _deep(levels - 1) + 1
    finally:
        exec("x = 1")


def _work(stop: threading.Event) -> None:
    levels = 0
    while not stop.is_set():
        levels = (levels + 7) % 60
        _deep(levels)
        thread = threading.Thread(target=_deep, args=(5,))
        thread.start()
        thread.join()


def test_copies_while_bytecode_runs():
    stop = threading.Event()
    threads = [threading.Thread(target=_work, args=(stop,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        texts = [_core.stacks_from_copy() for _ in range(COPIES)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(not thread.is_alive() for thread in threads)
    # A copy may have read a change that was under way, and ended.
    seen = [text for text in texts if text is not None and "test_copies_while_bytecode_runs" in text]
    assert len(seen) > COPIES // 2 and any("in _work" in text for text in seen)
