"""The interface of a launcher, and how the variables of launchers are read.

A missing half of a pair, a contradiction or a value that is not a number is an error and never a guess, because a job
that falls apart into single processes would train wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class Launcher:
    """A program that starts the ranks of a job. Subclasses set the class variables that differ, and override methods
    where variables alone do not say it."""

    name: ClassVar[str]
    """World.launcher, and in messages."""
    rank_variable: ClassVar[str]
    size_variable: ClassVar[str | None]
    """None if only MPI knows the size."""
    local_variables: ClassVar[tuple[str, str] | None] = None
    """The variables of local rank and local size."""
    job_variables: ClassVar[tuple[str, ...]] = ()
    """Variables that are equal on all processes of a job, and tell jobs apart."""
    variable_prefixes: ClassVar[tuple[str, ...]] = ()
    """How the names of its variables begin."""
    command: ClassVar[str] = ""
    """The command that users start it with, which `hvd doctor` looks for; "" if it has none of its own."""
    setting_option: ClassVar[str] = ""
    """Its option that gives all ranks a variable, for messages, such as ``mpirun -x {name}``; "" if it has none."""
    process_names: ClassVar[frozenset[str]] = frozenset()
    """Names of its processes that are parents of ranks."""
    has_own_variables: ClassVar[bool] = False
    """Whether nothing else sets its variables, so that they are right whatever other launchers' say."""
    starts_mpi: ClassVar[bool] = False
    """Whether it starts MPI in every process. If it may or may not do so: False."""
    never_starts_mpi: ClassVar[bool] = False
    mpi_libraries: ClassVar[tuple[str, ...]] = ()
    """The names of its own MPI's library, if it starts programs of one MPI only."""
    is_watched: ClassVar[bool] = True
    """Whether ranks end when its process has ended; False if it takes care of them itself."""
    not_elastic: ClassVar[str] = "its launcher did not start it as one"
    """Why a job that it has started does not continue without a rank that has died, for messages."""
    elastic_remedy: ClassVar[str] = "horovodrun -np N --min-np M ..., or restart the job from a checkpoint"
    """How to start a job that does."""
    needs_store: ClassVar[bool] = False
    """Whether it must serve the job's store: its ranks have no other way to find each other."""

    def is_present(self, environ: Mapping[str, str]) -> bool:
        """Whether its variables are set, at least one of a pair."""
        return self.rank_variable in environ or (self.size_variable or "") in environ

    def rank_and_size(self, environ: Mapping[str, str]) -> tuple[int, int | None]:
        """(rank, size); the size is None if only MPI knows it. Raises ValueError that names the variable."""
        if self.size_variable is None:
            return number(environ, self.rank_variable, 0), None
        return pair(environ, self.rank_variable, self.size_variable)

    def local_rank_and_size(
        self, environ: Mapping[str, str], size: int | None
    ) -> tuple[int, int] | tuple[None, None]:
        """(rank, size) among the processes of this host, or (None, None) if it does not say. Raises ValueError."""
        if self.local_variables is None or not set(self.local_variables) & environ.keys():
            return None, None
        local_rank, local_size = pair(environ, *self.local_variables)
        if size is not None and local_size > size:
            raise ValueError(f"{self.local_variables[1]}={local_size} is more than the whole job of {size}")
        # A local rank above the rank is possible: an oversubscribed mpirun assigns local ranks out of order.
        return local_rank, local_size

    def job(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Strings that are equal on all processes of this job."""
        return tuple(f"{name}={environ[name]}" for name in self.job_variables if name in environ)

    def is_set_by_hand(self, environ: Mapping[str, str]) -> bool:
        """Whether its variables are there, but it has not set them."""
        return False

    def is_agent(self, process_name: str, environ: Mapping[str, str]) -> bool:
        """Whether a parent of a rank, whose name no launcher has, is nevertheless its process."""
        return False

    def shown_process(self, process_name: str) -> str:
        """The name of its process in messages."""
        return process_name


def pair(environ: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    """(rank, size) from two variables, which must both be set. Raises ValueError that names the variable."""
    for name, other in ((rank_name, size_name), (size_name, rank_name)):
        if name not in environ:
            raise ValueError(
                f"{other}={environ[other]!r} is set but {name} is not: the launcher must set both. "
                f"Unset {other} to run a single process."
            )
    size = number(environ, size_name, 1)
    rank = number(environ, rank_name, 0)
    if rank >= size:
        raise ValueError(f"{rank_name}={rank} is not below {size_name}={size}")
    return rank, size


def number(environ: Mapping[str, str], name: str, least: int) -> int:
    """The integer in a variable that is set. Raises ValueError unless it has at most 9 digits and is ``least`` or
    more."""
    text = environ[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) < least:
        raise ValueError(f"{name}={environ[name]!r} is not an integer >= {least}")
    return int(text)
