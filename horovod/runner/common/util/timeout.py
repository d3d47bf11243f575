"""A deadline that several steps share. Any thread."""

import time

__all__ = ["Timeout", "TimeoutException"]


class TimeoutException(Exception):
    """A Timeout has timed out."""


class Timeout:
    """A deadline, which begins with the object.

    Args:
        timeout: seconds.
        message: the text of the error; "{activity}" and "{timeout}" in it are replaced.
    """

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._message = message
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Whether it has timed out."""
        return time.monotonic() > self._end

    def check_time_out_for(self, activity: str) -> None:
        """Raises TimeoutException if it has timed out; `activity` names the step that took the time."""
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout))
