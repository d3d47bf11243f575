"""The decisions of the driver of elastic jobs, in every order of events of small jobs (elastic_model.py).

Broken variants of the driver are walked too, because a model that finds no mistake in them would be useless.
"""

from __future__ import annotations

import re

import pytest

from elastic_model import ElasticModel, explore
from horovod._runner.elastic_membership import Membership, Phase, Stage

SMALL = {
    "one_killed_one_starts": {"size": 2, "least": 1, "most": 2, "goal": 1, "kills": 1, "starts": 1},
    "a_slot_goes_and_a_worker_starts": {
        "size": 1,
        "least": 1,
        "most": 2,
        "goal": 1,
        "kills": 1,
        "starts": 1,
        "removals": 1,
    },
    "three_and_one_killed": {"size": 3, "least": 2, "most": 3, "goal": 1, "kills": 1, "starts": 0},
    "two_trainings": {"size": 2, "least": 1, "most": 2, "goal": 1, "kills": 1, "starts": 0, "trainings": 2},
}
LARGE = {
    "two_killed_one_starts": {"size": 2, "least": 1, "most": 2, "goal": 1, "kills": 2, "starts": 1},
    "three_commits": {"size": 2, "least": 1, "most": 2, "goal": 3, "kills": 2, "starts": 1},
    "three_and_two_killed": {"size": 3, "least": 1, "most": 3, "goal": 1, "kills": 2, "starts": 0},
    "a_slot_goes_from_two": {
        "size": 2,
        "least": 1,
        "most": 2,
        "goal": 1,
        "kills": 1,
        "starts": 1,
        "removals": 1,
    },
    "one_grows_to_three": {"size": 2, "least": 1, "most": 3, "goal": 1, "kills": 1, "starts": 1},
    "a_slot_goes_when_its_replacement_is_ready": {
        "size": 2,
        "least": 1,
        "most": 2,
        "goal": 1,
        "kills": 1,
        "starts": 1,
        "removals": 1,
        "patient": True,
    },
    "two_trainings_and_a_new_worker": {
        "size": 2,
        "least": 1,
        "most": 2,
        "goal": 1,
        "kills": 1,
        "starts": 1,
        "trainings": 2,
    },
    "four": {"size": 4, "least": 3, "most": 4, "goal": 1, "kills": 1, "starts": 0},
}


def found(**numbers):
    result = explore(ElasticModel(**numbers), limit=3_000_000)
    return result, f"{result.error}\n" + "\n".join(result.trace)


@pytest.mark.parametrize("name", SMALL)
def test_every_order_of_events_ends_well(name):
    result, text = found(**SMALL[name])
    assert result.error is None, text
    assert result.states > 4000


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_every_order_of_events_of_larger_jobs_ends_well(name):
    result, text = found(**LARGE[name])
    assert result.error is None, text


class DoesNotWait(Membership):
    """Forms a world although a member of the last one may still commit."""

    def _form_world(self):
        kept = self.members
        self.members = tuple(n for n in kept if self.workers[n].stage is Stage.READY)
        commands = super()._form_world()
        if not commands:
            self.members = kept
        return commands


class IgnoresCommits(Membership):
    """Gives rank 0 to the member with the lowest old rank."""

    def _ranks(self, chosen):
        old = {number: rank for rank, number in enumerate(self.members)}
        return sorted(chosen, key=lambda worker: old.get(worker.number, len(old)))


class ForgetsTheEnd(Membership):
    """Forms a world after a worker has finished."""

    def _settle(self):
        if self.phase is Phase.ENDING:
            left = [w for w in self.workers.values() if w.stage is Stage.READY]
            if left and not any(w.stage in (Stage.PLACED, Stage.UP) for w in self.workers.values()):
                self.phase = Phase.GATHERING
        return super()._settle()


class LosesAWorld(Membership):
    """Does not tell the members of the second world that they are."""

    def _form_world(self):
        commands = super()._form_world()
        return commands[:-1] if self.world == 2 else commands


class KeepsNobodyForTheState(Membership):
    """Leaves out survivors without a slot, also those that hold the state."""

    def _choose(self, survivors, newcomers):
        return ([worker for worker in survivors if worker.wanted] + newcomers)[: self.most]


class GivesUpEarly(Membership):
    """Takes a state for lost when it misses commits that only rank 0 had."""

    def _form_world(self):
        commands = super()._form_world()
        if commands:
            self._newest = self.workers[self.members[0]].commits
        return commands


class ForgivesUnfinishedMembers(Membership):
    """Lets a member go that loses its world after another one has finished."""

    def _end(self):
        self.phase = Phase.ENDING


class ForgetsTheSlow(Membership):
    """Goes on when the first member has begun another training, although others have not finished the one before."""

    def again(self, number):
        self.workers[number].again = max(worker.again for worker in self.workers.values())
        kept = self.members
        self.members = tuple(n for n in kept if self.workers[n].stage in (Stage.UP, Stage.FINISHED))
        for worker in self.workers.values():
            worker.again = self.workers[number].again
        commands = super().again(number)
        for worker in self.workers.values():
            worker.again = self.workers[number].again
        self.members = kept
        return commands


@pytest.mark.parametrize(
    "variant, says, numbers",
    [
        pytest.param(
            *(ForgetsTheSlow, "different trainings", {**SMALL["two_trainings"], "size": 3, "most": 3}),
            marks=pytest.mark.slow,
        ),
        (GivesUpEarly, "although a survivor", {**SMALL["three_and_one_killed"], "least": 1, "kills": 2}),
        (ForgivesUnfinishedMembers, "have not finished", SMALL["three_and_one_killed"]),
        (DoesNotWait, "left", {"size": 2, "least": 1, "most": 2, "goal": 1, "kills": 1, "starts": 1}),
        (IgnoresCommits, "older commit|is lost", SMALL["three_and_one_killed"]),
        (ForgetsTheEnd, "after the end", SMALL["three_and_one_killed"]),
        (LosesAWorld, "deadlock", {"size": 2, "least": 1, "most": 2, "goal": 1, "kills": 1, "starts": 0}),
        (KeepsNobodyForTheState, "deadlock", SMALL["a_slot_goes_and_a_worker_starts"]),
    ],
)
def test_the_model_finds_the_mistake_of_a_broken_driver(variant, says, numbers):
    try:
        error = explore(ElasticModel(**numbers, make=variant), limit=300_000).error
    except AssertionError as stuck:  # "no member is left behind in an older world"
        error = str(stuck)
    assert error is not None and re.search(says, error), error
