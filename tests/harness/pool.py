"""The living jobs of this process (of each worker of pytest-xdist): found again by the number of ranks and the other
settings of the launch (command, variables), started when first wanted, ended when others need the room or the
session ends.
"""

import atexit

from . import environment
from .job import Job, Outcome

# Ranks alive at the same time; the job that was idle longest ends first.
MOST_RANKS = 12
_jobs: dict[tuple, Job] = {}


def call(key: tuple, command, variables: dict, function, arguments, options, seconds) -> Outcome:
    """Runs a call on the living job of that key; `key` begins with the number of ranks.

    `command` and `variables` are the launcher's and those of the ranks' processes from their start.
    """
    key = (*key, tuple(command or ()), tuple(sorted(variables.items())))
    job = _jobs.pop(key, None)
    if job is not None and not job.alive:
        job.kill()
        job = None
    if job is None:
        _make_room(key[0])
        job = Job(key[0], command, {**environment.base(), **variables})
    _jobs[key] = job  # at the end: used last
    return job.call(function, arguments, options, seconds)


def close_all() -> None:
    """Ends every job. Connections first, so that the jobs end side by side."""
    while _jobs:
        _jobs.popitem()[1].close()


def _make_room(ranks: int) -> None:
    while _jobs and sum(job.ranks for job in _jobs.values()) + ranks > MOST_RANKS:
        oldest = next(iter(_jobs))
        _jobs.pop(oldest).close()


atexit.register(close_all)
