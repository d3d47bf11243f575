"""Compares the gradients that the ranks are about to reduce, once for each list of variables, before the first reduction.

Without the comparison a rank whose model has another layer would wait for gradients that no other rank sends. Each rank
gets the descriptions of all ranks, so all raise the same error. It uses the NumPy API instead of Keras' backend, so it
works while a graph is being traced. One thread per process set.

In an elastic job a step that was traced in an earlier world is not traced again, so a new rank that traces it has
no other rank to compare with: it takes over what the other ranks have agreed on (horovod.common._elastic_job).
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod.common import _elastic_job
from horovod.common.objects import allgather_object
from horovod.common.process_sets import ProcessSet
from hvd_core import numpy_api
from hvd_core._bootstrap.driver_channel import channel
from hvd_core._runtime import runtime

NONE, DENSE, SPARSE32, SPARSE64 = range(4)
_KINDS = ("no gradient", "a dense gradient", "a sparse gradient", "a sparse gradient")


@dataclass(frozen=True)
class RankDescription:
    """The gradients that one rank is about to reduce: the name, shape and dtype of each variable, and the kind of its
    gradient."""

    settings: dict[str, Any]
    variables: list[tuple[str, list[Any], str, int]]


@dataclass
class StepAgreement:
    """The outcome of the comparison for one list of variables, the same on all ranks.

    `number`: counts the lists of variables; a part of the operations' names. `kinds`: the kind of each gradient.
    """

    number: int
    kinds: list[int]

    @property
    def complete(self) -> bool:
        """Whether each variable has a gradient on at least one rank."""
        return NONE not in self.kinds


_engine = None
_latest_number: dict[int, int] = {}  # by process set

# In an elastic job, by process set and description: the agreements that this rank has made in all worlds, and those
# received from other ranks. `outer`: made by this rank, outside of the training function, so that the optimizer lives on.
_made: dict[str, dict[int, tuple[StepAgreement, bool]]] = {}
# Those that this rank has not taken over in this world.
_offered: dict[str, list[StepAgreement]] = {}


def _next_number(process_set_id: int | None) -> int:
    global _engine, _latest_number
    if _engine is not runtime.engine():
        if channel() is None:  # another job: some ranks may be new, so all ranks count from 0
            _latest_number = {}
        _engine = runtime.engine()
    number = process_set_id or 0
    _latest_number[number] = _latest_number.get(number, -1) + 1
    return _latest_number[number]


def _receive(states: list[Any]) -> None:
    """In a new world: takes the agreements that all ranks have made, as _state() returns them."""
    _offered.clear()
    for latest, made in states:
        for process_set_id, number in latest.items():
            _latest_number[process_set_id] = max(number, _latest_number.get(process_set_id, -1))
        for text, agreements in made.items():
            of_text = _made.setdefault(text, {})
            for agreement in agreements:
                of_text.setdefault(agreement.number, (agreement, False))
    for text, of_text in _made.items():
        _offered[text] = [agreement for _, (agreement, outer) in sorted(of_text.items()) if not outer]


def _state() -> tuple[dict[int, int], dict[str, list[StepAgreement]]]:
    made = {text: [agreement for agreement, _ in of_text.values()] for text, of_text in _made.items()}
    return dict(_latest_number), made


_elastic_job.share("keras.agreements", _state, _receive)


def agree(own: RankDescription, process_set: ProcessSet, outer: bool = True) -> StepAgreement:
    """Compare this rank's description with those of the other ranks of the set, which all call agree().

    Args:
        outer: the optimizer was made outside of the training function of an elastic job.

    Raises:
        ValueError: on all ranks: settings, or the number, shapes or dtypes of variables, differ; the message names the
            difference. HorovodInternalError: a rank is gone.
    """
    if channel() is None:
        return _compare(own, process_set)
    shapes = [variable[1:3] for variable in own.variables]
    text = json.dumps([process_set.process_set_id, own.settings, shapes], default=str)
    offered = _offered.get(text)  # of an earlier world
    agreement = offered.pop(0) if offered else _compare(own, process_set)
    _made.setdefault(text, {})[agreement.number] = agreement, outer
    return agreement


def _compare(own: RankDescription, process_set: ProcessSet) -> StepAgreement:
    number = _next_number(process_set.process_set_id)
    of_all: list[RankDescription] = allgather_object(own, f"keras.{number}.agree", process_set)
    ranks = process_set.ranks or list(range(len(of_all)))
    for rank, other in zip(ranks, of_all):
        difference = _difference(of_all[0], other, ranks[0], rank)
        if difference:
            raise ValueError(
                f"The ranks' models or optimizers differ: {difference}. Build the same model and the same "
                "DistributedOptimizer on all ranks, and make the same variables trainable."
            )
    kinds = [max(kinds) for kinds in zip(*([v[3] for v in d.variables] for d in of_all))]
    return StepAgreement(number, kinds)


def kinds_on_any_rank(kinds: list[int], agreement: StepAgreement, process_set: ProcessSet) -> list[int]:
    """For each variable the kind of its gradient in this step on any rank, or NONE.

    For eager steps in which some variables have no gradient: which ones may differ between steps and between ranks.
    """
    found = numpy_api.allreduce(
        np.asarray(kinds, dtype=np.uint8),
        name=f"keras.{agreement.number}.presence",
        op=numpy_api.Max,
        process_set=process_set,
    )
    return [int(kind) for kind in found]


def _difference(first: RankDescription, other: RankDescription, first_rank: int, rank: int) -> str:
    """The first difference between two ranks' descriptions; empty if they agree."""
    for key, value in first.settings.items():
        if other.settings[key] != value:
            return f"{key} is {value!r} on rank {first_rank}, but {other.settings[key]!r} on rank {rank}"
    for index, (a, b) in enumerate(zip(first.variables, other.variables)):
        if a[1:3] != b[1:3]:
            return f"variable {index} is {_text_of(a)} on rank {first_rank}, but {_text_of(b)} on rank {rank}"
        kinds = {a[3], b[3]} - {NONE}
        if len(kinds) > 1:
            return f"variable {index} ({a[0]}) has {_KINDS[a[3]]} on rank {first_rank}, but {_KINDS[b[3]]} on rank {rank}"
    if len(first.variables) != len(other.variables):
        longer = max(first.variables, other.variables, key=len)
        extra = longer[min(len(first.variables), len(other.variables))]
        return (
            f"there are {len(first.variables)} trainable variables on rank {first_rank}, but {len(other.variables)} on "
            f"rank {rank}; the first that the other lacks is {_text_of(extra)}"
        )
    return ""


def _text_of(variable: tuple[Any, ...]) -> str:
    name, shape, dtype, _ = variable
    return f"{name} of shape {tuple(shape)}, {dtype}"


def require_same_everywhere(value: list[Any], name: str, complaint: str) -> None:
    """Compare a value with the other ranks' values. All ranks call this.

    Raises:
        ValueError: on all ranks: the values differ; the message is `complaint` and the values of two ranks.
    """
    first, *others = allgather_object(value, name)
    for rank, other in enumerate(others, 1):
        if other != first:
            raise ValueError(f"{complaint}: rank 0 has {first}, but rank {rank} has {other}.")
