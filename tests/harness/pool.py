"""The living jobs of this process (of each worker of pytest-xdist): found again by how they were started, started when
first wanted, ended when others need the room or the session ends.
"""

import atexit
from typing import NamedTuple

from . import environment
from .job import Job, Outcome

# Ranks alive at the same time; the job that was idle longest ends first.
MOST_RANKS = 12


class Start(NamedTuple):
    """How a job is started."""

    ranks: int
    command: tuple[str, ...]  # the launcher's words and the interpreter's
    variables: tuple[tuple[str, str], ...]  # those of the launcher and the ranks, beside the session's


_jobs: dict[Start, Job] = {}


def call(start: Start, function, arguments, options, seconds, fresh=False) -> Outcome:
    """Runs a call on the living job that was started so, or on a new one that ends with the call."""
    __tracebackhide__ = True
    job = None if fresh else _jobs.pop(start, None)
    if job is not None and not job.alive:
        job.kill()
        job = None
    if job is None:
        _make_room(start.ranks)
        job = Job(start.ranks, start.command, {**environment.base(), **dict(start.variables)})
    if not fresh:
        _jobs[start] = job  # at the end: used last
        return job.call(function, arguments, options, seconds)
    try:
        return job.call(function, arguments, options, seconds)
    finally:
        job.close()


def close_all() -> None:
    """Ends every job."""
    while _jobs:
        _jobs.popitem()[1].close()


def _make_room(ranks: int) -> None:
    while _jobs and sum(job.ranks for job in _jobs.values()) + ranks > MOST_RANKS:
        oldest = next(iter(_jobs))
        _jobs.pop(oldest).close()


atexit.register(close_all)
