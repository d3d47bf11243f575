"""A rank's end of the channel to its task, over which log_to_driver() sends text. Used by any thread of the rank.

Each message is one line of JSON. Nothing here waits: a message for which there is no room is dropped and counted.
"""

from __future__ import annotations

import json
import os
import socket
import threading

from hvd_core._base.messages import LineBuffer, line_of

DESCRIPTOR = "HOROVOD_SPARK_LOG_FD"
# Documented for log_to_driver.
MOST_CHARACTERS = 4000
# No line is longer: JSON writes a character in 12 bytes at most.
LONGEST_LINE = MOST_CHARACTERS * 12 + 1000


class RankChannel:
    """`descriptor`: of a stream socket, which this object owns from now on."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._unsent = b""
        self._dropped = 0

    def send(self, message: str) -> None:
        """Sends `message`, or drops it if the task does not read fast enough."""
        if os.getpid() != self._process:
            return  # a forked child: two processes would mix their messages
        with self._lock:
            if not self._flush():
                self._dropped += 1
                return
            said = {"text": message[:MOST_CHARACTERS], "dropped": self._dropped}
            self._dropped = 0
            self._unsent = line_of(said)
            self._flush()

    def _flush(self) -> bool:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except OSError:
                self._unsent = b""  # the task has ended, and this process will
                return True
            self._unsent = self._unsent[sent:]
        return True


_channel: RankChannel | None = None


def open_channel() -> None:
    """Takes over the descriptor that the task has passed, if there is one. Called once, before the function."""
    global _channel
    descriptor = os.environ.pop(DESCRIPTOR, None)
    if descriptor is not None:
        _channel = RankChannel(int(descriptor))


def log_to_driver(message: object) -> None:
    """Shows `message` where the driver of this rank's job writes its output; of a long one, the first 4000 characters.

    Returns immediately: a message is dropped, and counted in the next one, if the driver does not keep up. Outside of a
    job the message is printed.
    """
    text = str(message)[:MOST_CHARACTERS]
    if _channel is None:
        print(text, flush=True)
    else:
        _channel.send(text)


class LineReader:
    """The task's side: makes messages of the bytes of one channel. A line that is too long is left out."""

    def __init__(self) -> None:
        self._lines = LineBuffer(longest=0)

    def feed(self, data: bytes) -> list[str]:
        """The messages that are complete now."""
        lines = self._lines.feed(data)
        if len(self._lines.rest) > LONGEST_LINE:
            self._lines.take_rest()
        found = []
        for line in lines:
            try:
                said = json.loads(line)
                text, dropped = str(said["text"])[:MOST_CHARACTERS], int(said["dropped"])
            except (ValueError, KeyError, TypeError):
                continue  # the rest of a line that was too long
            if dropped:
                found.append(f"({dropped} messages before this one were dropped)")
            found.append(text)
        return found
