"""The two machines of the protocol model, remembered: a machine in one state is one object, and a step is taken once.

A state of a machine recurs in many states of a job, so that most steps are known already. No object here is part of a
cycle of references: all is freed with the world. Used by world.py, on one thread.
"""

from __future__ import annotations

from typing import Any

from coordinator import Coordinator
from participant import Participant
from protocol import Switches


class Machine:
    """A machine in one state. `now` is to be read only. Two of one family are equal only if they are one object."""

    __slots__ = ("frozen", "now")

    def __init__(self, frozen: tuple, now: Any):
        self.frozen, self.now = frozen, now


class Family:
    """All states of one rank's half, or of the root's."""

    def __init__(self, switches: Switches):
        self.switches = switches
        self._known: dict[tuple, Machine] = {}
        self._steps: dict[tuple[Machine, tuple], tuple[Machine, tuple]] = {}

    def first(self, frozen: tuple) -> Machine:
        return self._at(frozen, self._thaw(frozen))

    def step(self, machine: Machine, event: tuple) -> tuple[Machine, tuple]:
        """The machine after this event, and the machine's output."""
        step = self._steps.get((machine, event))
        if step is None:
            thawed = self._thaw(machine.frozen)
            self._tell(thawed, event)
            step = self._at(thawed.freeze(), thawed), tuple(thawed.out)
            self._steps[machine, event] = step
        return step

    def _at(self, frozen: tuple, thawed: Any) -> Machine:
        machine = self._known.get(frozen)
        if machine is None:
            machine = self._known[frozen] = Machine(frozen, thawed)
        return machine


class Participants(Family):
    """One rank's half."""

    def __init__(self, rank: int, switches: Switches):
        super().__init__(switches)
        self._rank = rank

    def _thaw(self, frozen: tuple) -> Participant:
        return Participant(self._rank, frozen, self.switches)

    def _tell(self, me: Participant, event: tuple) -> None:
        kind, *args = event
        if kind in ("add", "end"):
            me.sets(kind, *args)
        else:
            names = {"poll": "wanted", "open": "open_set", "shut": "shut_set"}
            getattr(me, names.get(kind, kind))(*args)


class Coordinators(Family):
    def _thaw(self, frozen: tuple) -> Coordinator:
        return Coordinator(frozen, self.switches)

    def _tell(self, root: Coordinator, event: tuple) -> None:
        if event[0] in ("form_batches", "dissolve"):
            getattr(root, event[0])(*event[1:])
        else:
            root.receive(event)
