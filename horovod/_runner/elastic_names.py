"""What an elastic job knows about the names of its hosts: which of them are this machine, and the way to the others.

The resolver and `ssh -G` may take many seconds. So each name is looked up in a thread of its own, and a host is used when
its name is known. Used on the thread of the driver.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from horovod._runner.addresses import source_address
from horovod._runner.background import Background
from horovod._runner.hosts import is_local

# A name without an address is looked up again after this time.
_AGAIN_S = 30.0
# A lookup that takes longer is told to the user.
_SLOW_S = 5.0


class HostNames:
    """`resolve(name)`: the name behind one that only the remote shell knows; it may wait."""

    def __init__(self, resolve: Callable[[str], str]) -> None:
        self._resolve = resolve
        self._background: Background | None = None
        self._changed: Callable[[], None] = lambda: None
        self._note: Callable[[str], None] = lambda text: None
        self._facts: dict[str, tuple[bool, str | None]] = {}  # (this machine, our address on the way there)
        self._asked: dict[str, float] = {}  # when a name was looked up last
        self._told: set[str] = set()
        self.here: str | None = None  # the name of this machine among the hosts

    def begin(self, background: Background, changed: Callable[[], None], note: Callable[[str], None]) -> None:
        """`changed` is called when more is known."""
        self._background, self._changed, self._note = background, changed, note

    def merged(self, hosts: dict[str, int]) -> dict[str, int]:
        """The hosts whose names are known, with all names of this machine made one."""
        found: dict[str, int] = {}
        for name, slots in hosts.items():
            if not self._is_known(name):
                continue
            if self._facts[name][0]:
                name = self.here = self.here or name
            found[name] = found.get(name, 0) + slots
        return {name: slots for name, slots in found.items() if slots > 0}

    def preferred(self, hosts: dict[str, int]) -> dict[str, int]:
        """As merged(), without the hosts behind one whose name is being looked up for the first time, if that does not
        take long: a host that stands first is used first."""
        now = time.monotonic()
        names = list(hosts)
        for place, name in enumerate(names):
            if name not in self._facts and now - self._asked.get(name, now) <= _SLOW_S:
                names = names[:place]
                break
        return self.merged({name: hosts[name] for name in names})

    def source(self, name: str) -> str | None:
        """This machine's address on the way to a host; None if it is not known."""
        return self._facts.get(name, (False, None))[1]

    def _is_known(self, name: str) -> bool:
        now = time.monotonic()
        if name in ("localhost", socket.gethostname()):
            self._facts[name] = (True, None)
        facts = self._facts.get(name)
        asked = self._asked.get(name)
        if facts is None and asked is not None and now - asked > _SLOW_S and name not in self._told:
            self._told.add(name)
            self._note(f"host {name} is not used yet: the look-up of its name takes more than {_SLOW_S:g} s")
        stale = facts is not None and facts == (False, None) and now - asked > _AGAIN_S
        if (facts is None and asked is None) or stale:
            begun = self._background.call(lambda: self._look_up(name), lambda facts: self._learn(name, facts))
            if begun:
                self._asked[name] = now
        return facts is not None

    def _look_up(self, name: str) -> tuple[bool, str | None]:
        try:
            if is_local(name):
                return True, None
            return False, source_address(name) or source_address(self._resolve(name))
        except Exception:  # the resolver of the system may be anything
            return False, None

    def _learn(self, name: str, facts: tuple[bool, str | None]) -> None:
        changed = self._facts.get(name) != facts
        self._facts[name] = facts
        if changed:
            self._changed()
