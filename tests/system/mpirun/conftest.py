"""Jobs started by an mpirun, directly and through horovodrun --mpi."""

import os
from pathlib import Path

import pytest

from launchers import Launcher


class ByMpirun(Launcher):
    """Starts `mpirun -np N` as Launcher starts horovodrun. `kind` is "Open MPI" or "MPICH"."""

    def __init__(self, folder, mpirun):
        super().__init__(folder)
        self.mpirun = mpirun
        self.kind = "Open MPI" if len(mpirun) > 1 else "MPICH"

    def start(self, *words, env=None, **options):
        return self.start_command([*self.mpirun, *map(str, words)], env, **options)

    def set_variable(self, name, value):
        """The options that give all ranks a variable."""
        return ["-x", f"{name}={value}"] if self.kind == "Open MPI" else ["-genv", name, value]


class ByHorovodrun(Launcher):
    """Starts `horovodrun` with one MPI on the PATH, before all others."""

    def __init__(self, folder, mpirun):
        super().__init__(folder)
        self.kind = "Open MPI" if len(mpirun) > 1 else "MPICH"
        self.path = os.pathsep.join([str(Path(mpirun[0]).parent), os.environ["PATH"]])

    def environment(self, env=None):
        return {**super().environment(), "PATH": self.path, **(env or {})}

    def tag(self, rank, stream="stdout"):
        """The label in front of a rank's line."""
        return f"[{rank}]<{stream}>:"


@pytest.fixture
def by_mpirun(tmp_path, mpirun):
    made = ByMpirun(tmp_path, mpirun)
    yield made
    made.clean_up()


@pytest.fixture
def by_horovodrun(tmp_path, mpirun):
    made = ByHorovodrun(tmp_path, mpirun)
    yield made
    made.clean_up()
