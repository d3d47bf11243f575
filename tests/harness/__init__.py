"""The harness for tests that need several ranks.

A test with ``@pytest.mark.ranks(3)`` runs on every rank of a job of three (plugin.py). ``run_on_ranks(3, f)`` runs a
function so and returns what each rank returned and printed. The ranks stay alive for further tests; the engine is
initialised before the function and shut down after it.

A rank that must die, or be seen to end, needs a launch of its own: launch() and run_to_the_end(). harness.rank has what
ranks need to wait for each other outside of the engine.
"""

from .job import Outcome, RanksFailed
from .launch import finish, launch, pids_of, run_to_the_end
from .run import run_on_ranks

__all__ = [
    "Outcome",
    "RanksFailed",
    "finish",
    "launch",
    "pids_of",
    "run_on_ranks",
    "run_to_the_end",
]
