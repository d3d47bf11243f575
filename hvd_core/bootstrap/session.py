"""The store as one init() uses it: keys with a prefix of their own, and waits that end if another rank fails.

Used on the thread that runs init(). Every wait ends at the session's deadline.
"""

import contextlib
import json
import secrets

from .job_members import MembersDisagree
from .socket_io import BootstrapError, BootstrapTimeout

# How often a wait checks whether another rank has failed.
_LOOK_SECONDS = 0.5


class Session:
    """The store under a prefix that belongs to this init() (``epoch``) alone.

    ``silence_s``: seconds without any message after which the host at the other end of a link counts as lost.
    """

    def __init__(self, store, secret, rank, size, epoch, deadline, silence_s=30.0):
        self.store, self.secret, self.rank, self.size, self.epoch = store, secret, rank, size, epoch
        self.deadline = deadline
        self.silence_s = silence_s
        self._prefix = f"hvd/{epoch}/"
        self._written = []
        # Not the rank: two processes may claim the same rank, and each must see the other's failure.
        self._process = secrets.token_hex(8)
        self.look = None  # called from time to time while this rank waits; raises to end the wait

    def put(self, key, value, keep=False):
        """Publishes ``value`` (any JSON value). With ``keep``, forget() does not delete it."""
        self.store.set(self._prefix + key, json.dumps(value).encode())
        if not keep:
            self._written.append(self._prefix + key)

    def count(self, key):
        """Adds one to a counter and returns it."""
        total = self.store.add(self._prefix + key, 1)
        if total == 1:
            self._written.append(self._prefix + key)
        return total

    def peek(self, key):
        """The value of ``key``, or None if it does not exist."""
        try:
            return json.loads(self.store.get(self._prefix + key, 0))
        except BootstrapTimeout:
            return None

    def wait(self, key, on_timeout=None):
        """Waits until ``key`` exists and returns its value.

        Raises BootstrapError if another rank fails first, BootstrapTimeout with the text that ``on_timeout()`` returns if
        the deadline passes.
        """
        while True:
            try:
                return json.loads(
                    self.store.get(self._prefix + key, min(_LOOK_SECONDS, self.deadline.left()))
                )
            except BootstrapTimeout:
                pass
            self.check()
            if self.deadline.passed():
                text = on_timeout() if on_timeout else f"no rank published {key!r}"
                raise BootstrapTimeout(f"{text} within {self.deadline.seconds:g} s")

    def check(self):
        """Raises BootstrapError if another rank has failed, or what look() raises."""
        failure = self.peek("failure")
        if failure is not None and failure["process"] != self._process:
            if failure["attempts"] is not None:
                attempts = [(None if m is None else tuple(m), count) for m, count in failure["attempts"]]
                raise MembersDisagree(failure["text"], attempts)
            raise BootstrapError(f"rank {failure['rank']} gave up: {failure['text']}")
        if self.look is not None:
            self.look()

    def fail(self, error):
        """Publishes the failure of this rank. The other ranks see the first failure only."""
        with contextlib.suppress(OSError, RuntimeError):
            if self.count("failures") == 1:
                failure = {"rank": self.rank, "process": self._process, "text": str(error)}
                failure["attempts"] = error.attempts if isinstance(error, MembersDisagree) else None
                self.put("failure", failure)

    def absent(self, key):
        """The ranks that have not published ``key``/rank yet."""
        return [rank for rank in range(self.size) if self.peek(f"{key}/{rank}") is None]

    def forget(self):
        """Deletes this rank's keys from the store. Call it only after all ranks have read them."""
        for key in self._written:
            self.store.delete(key)
        self._written.clear()


def name_ranks(ranks):
    """'rank 3' or 'ranks 1, 2 and 5'; more than 16 are counted."""
    shown = [str(rank) for rank in ranks[:16]]
    if len(ranks) == 1:
        return f"rank {shown[0]}"
    if len(ranks) > 16:
        return f"ranks {', '.join(shown)} and {len(ranks) - 16} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
