"""Kills ranks of an elastic job on purpose (--elastic-chaos), so that users can test their programs. On the thread of the
driver."""

from __future__ import annotations

import random
from collections.abc import Callable

from horovod._runner.elastic_membership import Membership, Phase, Stage
from horovod._runner.elastic_sites import Sites

_HOLDERS = (Stage.READY, Stage.UP)


class Chaos:
    """Sends SIGKILL to a worker after 0.5 to 1.5 times `every_s` seconds, again and again, once the first world is up: a
    member, a spare, or one that still starts. Leaves alone the last one that is known to hold the state, without which
    the job would end. `killed`: the workers that it has killed, whose deaths are no failures of their hosts."""

    def __init__(self, every_s: float, sites: Sites, note: Callable[[str], None]) -> None:
        self._every_s, self._sites, self._note = every_s, sites, note
        self._random = random.Random()
        self._next: float | None = None
        self._have_state: set[int] = set()
        self.killed: set[int] = set()

    def due(self) -> float | None:
        return self._next

    def entered(self, members: tuple[int, ...], sync: bool) -> None:
        """A world was formed. With `sync`, its members receive the state of rank 0."""
        self._have_state = set(members[:1] if sync else members)

    def has_state(self, number: int) -> None:
        """A member has received the state."""
        self._have_state.add(number)

    def advance(self, now: float, membership: Membership) -> None:
        if membership.phase is Phase.ENDING or (self._next is None and membership.phase is not Phase.RUNNING):
            return
        if self._next is not None and now >= self._next:
            self._strike(membership)
        if self._next is None or now >= self._next:
            self._next = now + self._every_s * self._random.uniform(0.5, 1.5)

    def _strike(self, membership: Membership) -> None:
        alive = [w for w in membership.alive() if not w.leaving and w.number not in self.killed]
        holders = [w.number for w in alive if w.number in self._have_state and w.stage in _HOLDERS]
        if not holders:
            return
        kept = self._random.choice(holders)
        victims = [worker.number for worker in alive if worker.number != kept]
        if victims:
            victim = self._random.choice(victims)
            self.killed.add(victim)
            self._note(f"process {victim} is killed on purpose (--elastic-chaos)")
            self._sites.kill(victim)
