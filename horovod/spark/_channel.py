"""A rank's channel to its task, over which log_to_driver() sends text: a socket with a line of JSON for each message."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading

from hvd_core._base.messages import LineBuffer, line_of

DESCRIPTOR = "HOROVOD_SPARK_LOG_FD"
# Documented for log_to_driver.
MOST_CHARACTERS = 4000

_channel: socket.socket | None = None
_owner = 0
_lock = threading.Lock()


def open_channel() -> None:
    """Takes over the descriptor that the task has passed, if there is one. Called once, before the function."""
    global _channel, _owner
    descriptor = os.environ.pop(DESCRIPTOR, None)
    if descriptor is not None:
        _channel, _owner = socket.socket(fileno=int(descriptor)), os.getpid()
        _channel.set_inheritable(False)


def log_to_driver(message: object) -> None:
    """Shows a message where the driver of this rank's job writes its output. Any thread.

    Outside of a job of HorovodRunner the message is printed. A forked child of a rank shows nothing.

    Args:
        message: of the text that str() makes of it, the first 4000 characters are shown.

    Example:
        >>> log_to_driver(f"epoch {epoch}: loss {loss:.3f}")
    """
    text = str(message)[:MOST_CHARACTERS]
    if _channel is None:
        print(text, flush=True)
    elif os.getpid() == _owner:  # two processes would mix their lines
        with _lock:
            try:
                _channel.sendall(line_of(text), socket.MSG_NOSIGNAL)
            except OSError:
                pass  # the task has ended, and this process will


class MessageReader:
    """The driver's side: makes messages of the bytes of one channel."""

    def __init__(self) -> None:
        self._lines = LineBuffer(longest=0)

    def feed(self, data: bytes) -> list[str]:
        """The messages that are complete now."""
        found = []
        for line in self._lines.feed(data):
            with contextlib.suppress(ValueError):  # a part of it was dropped
                found.append(str(json.loads(line)))
        return found
