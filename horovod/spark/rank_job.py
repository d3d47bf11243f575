"""Ranks of a Spark job on one machine: one rank in a task, or all ranks on the driver's machine.

A rank is a process of its own, as Spark uses its Python workers again for other tasks and kills them without ceremony.
The keeper of the launcher (horovod/_runner/supervisor.py) makes sure that no rank outlives this process. One thread.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from horovod._runner.environment import (
    backend_environment,
    is_this_python,
    job_environment,
    python_path,
    rank_environment,
    store_environment,
)
from horovod._runner.failures import EndedRanks, RankFailure, failure_of
from horovod._runner.functions import FunctionMemory, read_all, write_all
from horovod._runner.job import Job, Outcome
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.output import Output
from horovod._runner.site import RankSpec
from horovod.spark.placement import Place
from horovod.spark.rank_channel import DESCRIPTOR, LineReader

# The addresses of the GPUs that Spark has given to the rank's task.
DEVICES = "HOROVOD_TASK_DEVICES"
# A rank that makes a Spark session of its own must not take itself for an executor; and the secrets of Spark's own
# connections are not the rank's.
_OF_SPARK = re.compile(r"_?(PY)?SPARK_.*|PYTHON_(WORKER|UDF|DAEMON|PLANNER)_.*")


class RankJob(Job):
    """`on_output(rank, stream, data)`, if given, gets the ranks' output besides `output`; `on_message(rank, text)` the
    texts of log_to_driver()."""

    def __init__(
        self,
        site: LocalRanks,
        output: Output,
        ends: EndedRanks,
        on_message: Callable[[int, str], None],
        on_output: Callable[[int, int, bytes], None] | None = None,
    ) -> None:
        super().__init__([site], output, ends=ends)
        self._on_message, self._on_output = on_message, on_output
        self._readers = {rank: LineReader() for rank in site.ranks}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """As Job.output()."""
        super().output(rank, stream, data)
        if self._on_output is not None:
            self._on_output(rank, stream, data)

    def heard(self, rank: int, data: bytes) -> None:
        """Called by the site; see Listener."""
        for text in self._readers[rank].feed(data):
            self._on_message(rank, text)


class Ranks:
    """The processes of some ranks of a job. `function`: the pickled (function, args, kwargs); `variables`: of all ranks;
    `python`: their interpreter. close() when the results were read."""

    def __init__(
        self,
        places: Sequence[Place],
        function: bytes,
        variables: Mapping[str, str],
        python: str | None,
        store: str,
        secret: bytes,
    ) -> None:
        self._memory = FunctionMemory(place.slot.rank for place in places)
        write_all(self._memory.function, function)
        env = {
            **base_environment(os.environ, variables),
            **store_environment(store, secret),
        }
        if python is None or is_this_python(python):
            env["PYTHONPATH"] = python_path()
        elif "PYTHONPATH" not in variables:
            env.pop("PYTHONPATH", None)  # Spark's, for the executors' Python
        env |= backend_environment(env)
        command = [python or sys.executable, "-m", "horovod.spark.rank_main"]
        specs = []
        for place in places:
            rank = place.slot.rank
            own = {**rank_environment(place.slot), **self._memory.variables(rank)}
            if place.devices is not None:
                own |= {"CUDA_VISIBLE_DEVICES": ",".join(place.devices), DEVICES: ",".join(place.own_devices)}
            specs.append(RankSpec(rank, command, own, self._memory.descriptors(rank), DESCRIPTOR))
        self.site = LocalRanks(specs, env)

    def result(self, rank: int) -> bytes | None:
        """What the function has returned on `rank`, pickled as (True, value); None if the process left no result."""
        data = read_all(self._memory.results[rank])
        return data or None

    def failure(self, outcome: Outcome, bereaved: set[int]) -> RankFailure | None:
        """The failure of the rank that failed first; None after success."""
        if outcome.first_failed is None:
            if outcome.problem is not None:
                return RankFailure(self.site.ranks[0], 1, outcome.problem)
            silent = next((rank for rank in self.site.ranks if self.result(rank) is None), None)
            if silent is None:
                return None
            return RankFailure(silent, 0, "The process ended with status 0 before the function returned.\n")
        rank, code = outcome.first_failed
        return failure_of(rank, code, self.result(rank), rank in bereaved)

    def close(self) -> None:
        """Releases the memory of the function and its results."""
        self._memory.close()


def base_environment(base: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The ranks' variables without their places: those of this process that are not Spark's own, and `variables`."""
    kept = {name: value for name, value in base.items() if _OF_SPARK.fullmatch(name) is None}
    return {**job_environment(kept), **variables}
