"""Executes a shell command and ends all of its processes with it. Blocks its thread; any thread."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["GRACEFUL_TERMINATION_TIME_S", "execute"]

GRACEFUL_TERMINATION_TIME_S = 5
_LOOK_S = 0.05


def execute(
    command: str,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    index: int | None = None,
    events: Sequence[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """The exit code of a shell command; 128 + N if the signal N ended it.

    Args:
        command: for /bin/sh.
        env: the whole environment; None for that of this process.
        stdout, stderr: objects with a method write() that takes text; None for the streams of this process.
        index: a number; each line begins with "[index]<stdout>:" then.
        events: when one of them is set, the command and its children get SIGTERM, and SIGKILL after
            GRACEFUL_TERMINATION_TIME_S seconds.
        prefix_output_with_timestamp: write the time before that number.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # its children are in its process group
    )
    readers = [
        threading.Thread(
            target=_pass_on, args=(pipe, sink, _prefix(index, name, prefix_output_with_timestamp))
        )
        for pipe, sink, name in (
            (process.stdout, stdout or sys.stdout, "stdout"),
            (process.stderr, stderr or sys.stderr, "stderr"),
        )
    ]
    for reader in readers:
        reader.start()
    try:
        while process.poll() is None:
            if any(event.is_set() for event in events or ()):
                _end(process)
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S if events else None)
    finally:
        _end(process)  # what the command has left running, and the command itself after an exception here
        for reader in readers:
            reader.join()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _prefix(index: int | None, stream: str, timestamp: bool) -> Callable[[], str]:
    def text() -> str:
        return "" if index is None else f"{time.asctime() if timestamp else ''}[{index}]<{stream}>:"

    return text


def _pass_on(pipe: Any, sink: Any, prefix: Any) -> None:
    with pipe:
        for line in pipe:
            sink.write(prefix() + line.decode(errors="replace"))
            getattr(sink, "flush", lambda: None)()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process group: SIGTERM, and SIGKILL if it has not ended after a while."""
    if not _signal(process, signal.SIGTERM):
        process.wait()
        return
    deadline = time.monotonic() + GRACEFUL_TERMINATION_TIME_S
    while time.monotonic() < deadline:
        process.poll()  # a zombie counts as a member of the group
        if not _signal(process, 0):
            break
        time.sleep(_LOOK_S)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether the process group still has a member."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
