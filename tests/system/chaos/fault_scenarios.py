"""The scenarios of the chaos suite: what fails, where and when, all of it from a seed.

A scenario is a job of 2 to 4 ranks on one host, of which one (the victim) meets a fault during one operation in one phase
of the job. Each other rank must end with success, or with an error that names the cause, within the deadline.
"""

import collections
import random
from dataclasses import dataclass

OPERATIONS = (
    "allreduce",
    "grouped",
    "allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "barrier",
    "adasum",
)
PHASES = ("init", "first use", "steady", "large", "sets", "shutdown")
# kill, exit 0 and exit 3 end the victim's process; leave: it shuts down while the others go on; stop: it is stopped by a
# signal, so that the operation's time runs out; cut: its links are closed although it lives.
FAULTS = ("kill", "exit 0", "exit 3", "leave", "stop", "cut")
# Of the backend chaos, in a collective of the victim; drop: a message is lost.
BACKEND_FAULTS = ("error", "device", "exit", "kill", "hang", "drop")
# Of the backend hanging (tests/backends/host/hanging), in a call that comes back after an abort, or an operation that is
# never complete.
HANGING_CALLS = ("collective", "req_test", "never")
# Forked ranks with the store of a launcher take most scenarios, because a start of theirs costs no import.
LAUNCHERS = {"forked": 12, "horovodrun": 2, "Open MPI": 1, "MPICH": 1, "torchrun": 1}
BACKENDS = {"shm": 4, "tcp": 4, "gloo": 2, "chaos": 2, "hanging": 2}
OPERATION_SECONDS = 2.0


@dataclass(frozen=True)
class Scenario:
    """``step``: the operation's number at which the fault comes; ``delay_ms``: of a fault that a timer brings."""

    seed: int
    size: int
    victim: int
    operation: str
    phase: str
    fault: str
    backend: str
    launcher: str
    step: int
    delay_ms: float

    def __str__(self):
        victim = f"{self.fault} of rank {self.victim}/{self.size}"
        return f"{self.seed}: {victim}, {self.phase}, {self.operation}, {self.backend}, {self.launcher}"

    @property
    def by_backend(self):
        """Whether the backend itself brings the fault."""
        return self.backend in ("chaos", "hanging")

    @property
    def ends_unseen(self):
        """Whether the victim may end before its init() begins with no process that tells the others: they miss it after
        HOROVOD_START_TIMEOUT only."""
        return self.phase == "init" and self.launcher not in ("forked", "horovodrun")

    @property
    def kind(self):
        """The phase and the fault, a row of the table of results."""
        return (self.phase, f"{self.backend}: {self.fault}" if self.by_backend else self.fault)


def _one_of(chance, weights):
    return chance.choices(tuple(weights), tuple(weights.values()))[0]


def scenario(seed):
    """The scenario of a seed."""
    chance = random.Random(seed)
    size = chance.randint(2, 4)
    backend = _one_of(chance, BACKENDS)
    if backend == "chaos":
        fault, phase = chance.choice(BACKEND_FAULTS), chance.choice(("first use", "steady"))
    elif backend == "hanging":
        fault, phase = chance.choice(HANGING_CALLS), chance.choice(("first use", "steady"))
    else:
        fault, phase = chance.choice(FAULTS), chance.choice(PHASES)
        while fault in ("leave", "cut", "stop") and phase in ("init", "shutdown"):
            fault = chance.choice(FAULTS)
    operation, victim = chance.choice(OPERATIONS), chance.randrange(size)
    if operation == "adasum" and size == 3:
        size = 4  # a power of two
    return Scenario(
        seed=seed,
        size=size,
        victim=victim,
        operation=operation,
        phase=phase,
        fault=fault,
        backend=backend,
        launcher=_one_of(chance, LAUNCHERS),
        step=1 if phase == "first use" else chance.randint(2, 30),
        delay_ms=chance.uniform(0, 60 if phase == "init" else 15),
    )


def coverage(scenarios, rows, columns):
    """A table in Markdown: how many scenarios have each pair of values of the attributes ``rows`` and ``columns``."""
    counts = collections.Counter((_value(one, rows), _value(one, columns)) for one in scenarios)
    heads = sorted({column for _, column in counts}, key=str)
    lines = [f"| {rows} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for row in sorted({row for row, _ in counts}):
        cells = (str(counts[row, head] or "") for head in heads)
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _value(one, attribute):
    return one.kind[1] if attribute == "fault" else getattr(one, attribute)
