"""Ranks of a Spark job: which rank each task runs, which devices it sees, and the variables of its process.

Pure functions. The ranks of a host are consecutive, and the host of task 0 comes first, as with the original's
`horovod.spark.run`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horovod._runner.environment import (
    backend_environment,
    is_this_python,
    job_environment,
    python_path,
    rank_environment,
)
from horovod._runner.hosts import HostInfo, SlotInfo, get_host_assignments

# The addresses of the GPUs that Spark has given to the rank's task.
DEVICES = "HOROVOD_TASK_DEVICES"
# A rank that makes a Spark session of its own must not take itself for an executor; and the secrets of Spark's own
# connections are not the rank's.
_OF_SPARK = re.compile(r"_?(PY)?SPARK_.*|PYTHON_(WORKER|UDF|DAEMON|PLANNER)_.*")


@dataclass(frozen=True)
class TaskFacts:
    """What a task reports to the driver.

    Attributes:
        host: the name of its host.
        space: differs between containers of one host.
        devices: the addresses of the GPUs that Spark has given to the task.
        number: of its partition.
    """

    host: str
    space: str
    devices: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True)
class Place:
    """The rank of one task. `devices`: what its process sees; None if Spark has given it none. `own_devices`: those of
    its task alone."""

    slot: SlotInfo
    devices: tuple[str, ...] | None
    own_devices: tuple[str, ...] = ()

    def variables(self) -> dict[str, str]:
        """The rank's own variables."""
        return rank_environment(self.slot) | device_variables(self.devices, self.own_devices)


def device_variables(visible: Sequence[str] | None, own: Sequence[str]) -> dict[str, str]:
    """The variables for the GPUs that a rank sees, and for those of its task."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible), DEVICES: ",".join(own)} if visible else {}


def assign(tasks: Sequence[TaskFacts]) -> list[Place]:
    """The place of each task, in the order of the tasks."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, facts in enumerate(tasks):
        groups.setdefault((facts.host, facts.space), []).append(number)
    hosts = [HostInfo(host, len(members)) for (host, _), members in groups.items()]
    slots = iter(get_host_assignments(hosts, len(tasks)))
    places: dict[int, Place] = {}
    for members in groups.values():
        devices = _devices([tasks[number].devices for number in members])
        for number in members:
            places[number] = Place(next(slots), devices, tasks[number].devices)
    return [places[number] for number in range(len(tasks))]


def _devices(given: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The devices that all ranks of a host see. Programs choose one by their local rank, so that the first device of
    local rank n is at place n; further ones come after these."""
    if not all(given):
        return None
    firsts = [devices[0] for devices in given]
    return tuple(firsts + [device for devices in given for device in devices[1:]])


def base_environment(
    base: Mapping[str, str], variables: Mapping[str, str], python: str | None = None
) -> dict[str, str]:
    """The variables that all ranks of a host share.

    Args:
        base: those of this process; Spark's own are left out.
        variables: those of the job.
        python: the ranks' interpreter; None for this one. Another one does not get the import path of this one.
    """
    kept = {name: value for name, value in base.items() if _OF_SPARK.fullmatch(name) is None}
    env = {**job_environment(kept), **variables}
    if python is None or is_this_python(python):
        env["PYTHONPATH"] = python_path()
    elif "PYTHONPATH" not in variables:
        env.pop("PYTHONPATH", None)  # Spark's, for the executors' Python
    return env | backend_environment(env)


def rank_command(python: str | None) -> list[str]:
    """The command of a rank."""
    return [python or sys.executable, "-m", "horovod.spark._rank_main"]
