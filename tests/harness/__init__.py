"""The one harness for checks that need several ranks: jobs that stay alive and run many checks per launch.

A check is a function that every rank of a job executes. ``@on_ranks(3)`` turns it into a test; ``run_on_ranks(3, f)``
runs it and returns what each rank returned and printed. The engine is initialised before the check and shut down after
it, in processes that have imported everything already, so a check costs milliseconds where a launch costs seconds.

A rank that must die, or be seen to end, needs a launch of its own: launch() and run_to_the_end(). In a check,
harness.rank has what ranks need to wait for each other outside of the engine.
"""

from .checks import check_names, on_ranks, run_on_ranks
from .job import Outcome, RanksFailed
from .launch import finish, launch, pids_of, run_to_the_end
from .pool import close_all

__all__ = [
    "Outcome",
    "RanksFailed",
    "check_names",
    "close_all",
    "finish",
    "launch",
    "on_ranks",
    "pids_of",
    "run_on_ranks",
    "run_to_the_end",
]
