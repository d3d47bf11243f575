"""srun of Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hvd_core._bootstrap.launchers.launcher import Launcher, number


class Slurm(Launcher):
    name = "srun"
    rank_variable, size_variable = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"
    job_variables = ("SLURM_JOB_ID", "SLURM_STEP_ID")
    variable_prefixes = ("SLURM_",)
    command = "srun"
    setting_option = "srun --export=ALL,{name}=VALUE"
    process_names = frozenset(("slurmstepd",))
    not_elastic = (
        "srun started it, which starts no process to replace one that has died (and ends the others with "
        "--kill-on-bad-exit=1)"
    )
    elastic_remedy = (
        "start one horovodrun --min-np M in the allocation, with the allocation's hosts, or restart the job from a "
        "checkpoint"
    )

    def is_present(self, environ: Mapping[str, str]) -> bool:
        return in_step(environ)

    def local_rank_and_size(
        self, environ: Mapping[str, str], size: int | None
    ) -> tuple[int, int] | tuple[None, None]:
        return local_rank_and_size(environ)


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether srun has started this process, directly or with a launcher between. A batch script has SLURM_PROCID=0 and
    the job's task count, but is one process outside any step."""
    return "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ


def local_rank_and_size(environ: Mapping[str, str]) -> tuple[int, int] | tuple[None, None]:
    """(rank, size) among the step's processes on this host, or (None, None). Raises ValueError."""
    # A list of runs: '4(x3),2'.
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if not {"SLURM_LOCALID", "SLURM_NODEID"} <= environ.keys() or not text:
        return None, None
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part)
        if not match:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not a list like '4(x3),2'")
        counts += [int(match[1])] * int(match[2] or 1)
    node = number(environ, "SLURM_NODEID", 0)
    local_rank = number(environ, "SLURM_LOCALID", 0)
    if node >= len(counts) or local_rank >= counts[node]:
        raise ValueError(
            f"SLURM_NODEID={node} and SLURM_LOCALID={local_rank} do not fit "
            f"SLURM_STEP_TASKS_PER_NODE={text!r}"
        )
    return local_rank, counts[node]
