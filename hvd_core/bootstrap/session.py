"""One init()'s view of the store: keys of its own, waits that notice a failure elsewhere.

Used by the thread that runs init(). Every wait ends at the session's deadline.
"""

import contextlib
import json
import secrets

from .membership import MembersDisagree
from .wire import BootstrapError, BootstrapTimeout

# How often a wait looks whether another rank has given up.
_LOOK_SECONDS = 0.5


class Session:
    """The store under a prefix that belongs to this init() (``epoch``) alone.

    ``silence_s``: after so many seconds without a sign of life the host at the other end of a link counts as lost.
    """

    def __init__(self, store, secret, rank, size, epoch, deadline, silence_s=30.0):
        self.store, self.secret, self.rank, self.size, self.epoch = store, secret, rank, size, epoch
        self.deadline = deadline
        self.silence_s = silence_s
        self._prefix = f"hvd/{epoch}/"
        self._written = []
        # Not the rank: two processes may claim the same one, and each has to hear the other.
        self._who = secrets.token_hex(8)
        self.look = None  # called from time to time while this rank waits; raises what it finds wrong

    def put(self, key, value, keep=False):
        """Publishes ``value`` (anything JSON can hold); ``keep`` takes it out of forget()."""
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
        """The value of ``key``, or None when it is not there."""
        try:
            return json.loads(self.store.get(self._prefix + key, 0))
        except BootstrapTimeout:
            return None

    def wait(self, key, on_timeout=None):
        """The value of ``key`` once somebody has put it.

        Raises BootstrapError when another rank gives up first, BootstrapTimeout with the text that
        ``on_timeout()`` returns when the deadline passes.
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
                text = on_timeout() if on_timeout else f"nobody published {key!r}"
                raise BootstrapTimeout(f"{text} within {self.deadline.seconds:g} s")

    def check(self):
        """Raises BootstrapError when another rank has given up, or look() finds a reason to."""
        failure = self.peek("failure")
        if failure is not None and failure["who"] != self._who:
            if failure["attempts"] is not None:
                attempts = [(None if m is None else tuple(m), count) for m, count in failure["attempts"]]
                raise MembersDisagree(failure["text"], attempts)
            raise BootstrapError(f"rank {failure['rank']} gave up: {failure['text']}")
        if self.look is not None:
            self.look()

    def fail(self, error):
        """Tells the others why this rank gives up. The first one to say so is the one they hear."""
        with contextlib.suppress(OSError, RuntimeError):
            if self.count("failures") == 1:
                said = {"rank": self.rank, "who": self._who, "text": str(error)}
                said["attempts"] = error.attempts if isinstance(error, MembersDisagree) else None
                self.put("failure", said)

    def absent(self, key):
        """Ranks that have not put ``key``/rank yet."""
        return [rank for rank in range(self.size) if self.peek(f"{key}/{rank}") is None]

    def forget(self):
        """Takes this rank's keys out of the store. Only after everybody has read them."""
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
