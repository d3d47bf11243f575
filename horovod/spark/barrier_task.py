"""A task of the barrier stage that is a Spark job of Horovod: runs one rank, in the Python worker of an executor.

The rank is a child process (rank_job.py). If Spark ends this process, as it does when the job is cancelled, the rank's
keeper ends the rank. Imported on the executors only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from horovod._runner.output import Output
from horovod.spark.log_frames import LogSender
from horovod.spark.placement import TaskFacts, assign
from horovod.spark.rank_job import RankJob, Ranks
from horovod.spark.reports import RankEnds, await_cause, bereaved, note_begun, note_failure
from hvd_core._base.sockets import split_address
from hvd_core._bootstrap import encryption
from hvd_core._bootstrap.store import StoreClient

# A rank that failed because of another one tells it this much later than the other one at most.
_CAUSE_S = 10.0
# What Spark shows of a failure; the driver gets all of it.
_LONGEST_TEXT = 20_000
_SPACES = ("pid", "net", "mnt", "ipc")


@dataclass(frozen=True)
class Plan:
    """What all tasks are told. `store`, `log`: addresses on the driver. `variables`: of the ranks, besides those of the
    executor. `python`: the ranks' interpreter, None for the executor's. `show_output`: the driver shows what the ranks
    print. Holds the job's secret: keep it out of logs."""

    store: str
    log: str
    secret: bytes
    variables: Mapping[str, str]
    python: str | None
    show_output: bool

    def __repr__(self) -> str:
        return f"Plan(store={self.store!r}, log={self.log!r})"


def run(plan: Plan, function: bytes) -> Iterator[tuple[int, bytes]]:
    """The task: (rank, its pickled result). Raises RuntimeError with the reason if the rank fails."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    if context.attemptNumber() > 0:
        raise RuntimeError("A job of Horovod is not repeated by Spark: its ranks have begun before.")
    tasks = [TaskFacts(**_facts(text)) for text in context.allGather(json.dumps(asdict(own_facts(context))))]
    places = assign(tasks)
    place = places[context.partitionId()]
    rank = place.slot.rank
    with contextlib.ExitStack() as stack:
        encrypted = encryption.required_by({**os.environ, **plan.variables}, split_address(plan.store)[0])
        client = StoreClient(plan.store, plan.secret, rank, encrypted=encrypted)
        store = stack.enter_context(contextlib.closing(client))
        if rank == 0:
            note_begun(store, tasks, places)
        log = stack.enter_context(contextlib.closing(LogSender(plan.log, plan.secret, rank)))
        ranks = Ranks([place], function, plan.variables, plan.python, plan.store, plan.secret)
        stack.callback(ranks.close)
        ends = RankEnds(plan.store, plan.secret, encrypted)
        shown = log.output if plan.show_output else None
        outcome = RankJob(ranks.site, Output(place.slot.size), ends, log.message, shown).run()
        failure = ranks.failure(outcome, bereaved(plan.store, plan.secret, [rank], encrypted))
        if failure is not None:
            log.close()
            note_failure(store, failure, place.slot.hostname, plan.python or sys.executable)
            if failure.bereaved:
                await_cause(store, _CAUSE_S)
            told = failure.text[-_LONGEST_TEXT:]
            raise RuntimeError(f"rank {rank} on host {place.slot.hostname} failed: {told}")
        yield rank, ranks.result(rank)


def own_facts(context) -> TaskFacts:
    """The facts of this task. `context`: its TaskContext."""
    spaces = []
    for name in _SPACES:
        try:
            spaces.append(os.readlink(f"/proc/self/ns/{name}"))
        except OSError:
            spaces.append("")
    resources = context.resources()
    devices = tuple(resources["gpu"].addresses) if "gpu" in resources else ()
    return TaskFacts(socket.gethostname(), " ".join(spaces), devices)


def _facts(text: str) -> dict:
    said = json.loads(text)
    return {**said, "devices": tuple(said["devices"])}
