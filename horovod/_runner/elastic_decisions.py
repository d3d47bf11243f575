"""The membership of an elastic job, and what follows from its decisions: stores of worlds, and words to workers.

On the thread of the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from horovod._runner.elastic_chaos import Chaos
from horovod._runner.elastic_membership import Command, Enter, Leave, Membership, Phase, Stage, Update
from horovod._runner.elastic_places import Places
from horovod._runner.elastic_sites import Sites
from horovod._runner.elastic_watch import Watch

# A worker that was told to leave gets this time.
_LEAVE_S = 10.0
# When no world can be formed, the driver tries again after this time.
_FORM_PAUSE_S = 1.0


class Decisions:
    """`membership`: as it is after the last event. `form_after`: when the next attempt to form a world is due, if one has
    failed. `problem`: the last one, which is told once. `note` writes a line for the user."""

    def __init__(
        self,
        membership: Membership,
        places: Places,
        workers: Sites,
        watch: Watch,
        chaos: Chaos | None,
        note: Callable[[str], None],
        verbose: bool,
    ) -> None:
        self.membership = membership
        self._places, self._workers, self._watch, self._chaos = places, workers, watch, chaos
        self._note, self._verbose = note, verbose
        self.form_after = 0.0
        self.problem = ""

    def settle(self, event: Callable[[Membership], Sequence[Command]]) -> None:
        """Lets the membership decide, and carries out its commands. If the store of a new world cannot be opened, the
        membership decides again without that world, and later once more. Raises OSError or ValueError if that is the
        first world."""
        before, after = self.membership, self.membership.copy()
        commands = event(after)
        enter = next((command for command in commands if isinstance(command, Enter)), None)
        if enter is not None:
            try:
                self._places.open([after.workers[number] for number in enter.members])
            except (OSError, ValueError) as error:
                if before.world == 0:
                    raise
                self.note_once(f"world {enter.world} cannot be formed now: {error}", f"{error}")
                self.form_after = time.monotonic() + _FORM_PAUSE_S
                after = before.copy()
                after.held = True
                commands = [] if event is Membership.settle else event(after)
        if after.phase is Phase.GATHERING and before.phase is not Phase.GATHERING:
            self._watch.begin(time.monotonic())
        self.membership = after
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Enter):
            if self._chaos is not None:
                self._chaos.entered(command.members, command.sync)
            self._tell_places(command)
        elif isinstance(command, Update):
            for number in command.members:
                self._workers.say(number, kind="update")
        elif isinstance(command, Leave):
            starting = self.membership.workers[command.number].stage is Stage.STARTING
            self._workers.say(command.number, kind="leave")
            self._workers.leave_until(command.number, time.monotonic() + (0.0 if starting else _LEAVE_S))

    def _tell_places(self, world: Enter) -> None:
        members = [self.membership.workers[number] for number in world.members]
        places, where = self._places.variables(world.world, members)
        names = " ".join(map(str, world.members))
        if self._verbose or world.world > 1:
            self._note(
                f"world {world.world}: {len(members)} ranks on {where}; the processes by rank: {names}"
            )
        for number, variables in zip(world.members, places):
            self._workers.say(number, kind="enter", env=variables, sync=world.sync)

    def note_once(self, text: str, problem: str) -> None:
        """Writes a line, unless the last problem was the same."""
        if problem != self.problem:
            self.problem = problem
            self._note(text)
