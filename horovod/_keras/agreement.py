"""Do the ranks reduce the same gradients? Asked once for each list of variables, before the first reduction.

Without it a rank whose model has another layer would wait for gradients that nobody sends. Every rank learns what all
have, so all raise the same error. Goes past Keras and its backend, by the engine's NumPy face: it works while a graph is
being traced. One thread per process set.
"""

import json
from dataclasses import dataclass

import numpy as np

from horovod.common.process_sets import ProcessSet
from hvd_core import numpy_face, runtime

NONE, DENSE, SPARSE32, SPARSE64 = range(4)
_KINDS = ("no gradient", "a dense gradient", "a sparse gradient", "a sparse gradient")


@dataclass(frozen=True)
class Description:
    """What one rank is about to reduce: of each variable its name, shape, dtype and kind of gradient."""

    settings: dict
    variables: list[tuple[str, list, str, int]]


@dataclass
class Plan:
    """What the ranks agreed on. `number`: of this list of variables, the same on all ranks, for names on the wire."""

    number: int
    kinds: list[int]

    @property
    def complete(self) -> bool:
        """Whether there is a gradient of every variable, on some rank at least."""
        return NONE not in self.kinds


_engine = None
_made: dict[int, int] = {}


def _next_number(process_set_id: int) -> int:
    global _engine, _made
    if _engine is not runtime.engine():  # another job: ranks may be new, so all count from 0
        _engine, _made = runtime.engine(), {}
    _made[process_set_id] = _made.get(process_set_id, -1) + 1
    return _made[process_set_id]


def agree(own: Description, process_set: ProcessSet) -> Plan:
    """Compare with the other ranks of the set, which all call this.

    Raises:
        ValueError: settings, or the number, shapes or dtypes of variables, differ. On all ranks, with what differs.
        HorovodInternalError: a rank is gone.
    """
    number = _next_number(process_set.process_set_id)
    of_all = [
        Description(*described)
        for described in gathered([own.settings, own.variables], f"keras.{number}.agree", process_set)
    ]
    ranks = process_set.ranks or list(range(len(of_all)))
    for rank, other in zip(ranks, of_all):
        difference = _difference(of_all[0], other, ranks[0], rank)
        if difference:
            raise ValueError(
                f"The ranks' models or optimizers differ: {difference}. Build the same model and the same "
                "DistributedOptimizer on all ranks, and make the same variables trainable."
            )
    kinds = [max(kinds) for kinds in zip(*([v[3] for v in d.variables] for d in of_all))]
    return Plan(number, kinds)


def agree_on_presence(kinds: list[int], plan: Plan, process_set: ProcessSet) -> list[int]:
    """The kinds of gradients that there are in this step, on any rank. For eager steps of models some of whose variables
    have no gradient: which ones may change from step to step, and differ."""
    found = numpy_face.allreduce(
        np.asarray(kinds, dtype=np.uint8),
        name=f"keras.{plan.number}.presence",
        op=numpy_face.Max,
        process_set=process_set,
    )
    return found.tolist()


def _difference(first: Description, other: Description, first_rank: int, rank: int) -> str:
    for key, value in first.settings.items():
        if other.settings[key] != value:
            return f"{key} is {value!r} on rank {first_rank}, but {other.settings[key]!r} on rank {rank}"
    for index, (a, b) in enumerate(zip(first.variables, other.variables)):
        if a[1:3] != b[1:3]:
            return f"variable {index} is {_told(a)} on rank {first_rank}, but {_told(b)} on rank {rank}"
        kinds = {a[3], b[3]} - {NONE}
        if len(kinds) > 1:
            return f"variable {index} ({a[0]}) has {_KINDS[a[3]]} on rank {first_rank}, but {_KINDS[b[3]]} on rank {rank}"
    if len(first.variables) != len(other.variables):
        longer = max(first.variables, other.variables, key=len)
        extra = longer[min(len(first.variables), len(other.variables))]
        return (
            f"there are {len(first.variables)} trainable variables on rank {first_rank}, but {len(other.variables)} on "
            f"rank {rank}; the first that the other lacks is {_told(extra)}"
        )
    return ""


def _told(variable: tuple) -> str:
    name, shape, dtype, _ = variable
    return f"{name} of shape {tuple(shape)}, {dtype}"


def same_everywhere(value: list, name: str, complaint: str) -> None:
    """All ranks call this with something that JSON can write.

    Raises:
        ValueError: the values differ. On all ranks, with `complaint` and what two of them have.
    """
    for rank, other in enumerate(gathered(value, name, None)):
        if rank == 0:
            first = other
        elif other != first:
            raise ValueError(f"{complaint}: rank 0 has {first}, but rank {rank} has {other}.")


def gathered(value: object, name: str, process_set: ProcessSet | None) -> list:
    """What each rank has given, in rank order."""
    text = json.dumps(value).encode()
    framed = np.frombuffer(len(text).to_bytes(8, "little") + text, dtype=np.uint8)
    everything = numpy_face.allgather(framed, name=name, process_set=process_set).tobytes()
    values = []
    while everything:
        end = 8 + int.from_bytes(everything[:8], "little")
        values.append(json.loads(everything[8:end]))
        everything = everything[end:]
    return values
