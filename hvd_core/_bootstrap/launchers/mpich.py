"""mpiexec of MPICH and its kin (Intel MPI, MVAPICH), and other process managers that speak PMI-1, Slurm's among them."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_core._bootstrap.launchers import slurm
from hvd_core._bootstrap.launchers.launcher import Launcher


class Mpich(Launcher):
    name = "mpich"
    rank_variable, size_variable = "PMI_RANK", "PMI_SIZE"
    local_variables = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    job_variables = ("PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    variable_prefixes = ("PMI_", "MPI_LOCAL")
    command = "mpirun"
    setting_option = "mpirun -genv {name} VALUE"
    process_names = frozenset(("mpirun", "mpiexec", "mpiexec.hydra", "mpiexec.gforker", "hydra_pmi_proxy"))
    starts_mpi = True
    mpi_libraries = ("libmpi.so.12", "libmpich.so.12")
    not_elastic = "mpirun started it, and ends all processes of a job when one of them dies"

    def is_present(self, environ: Mapping[str, str]) -> bool:
        if slurm.in_step(environ):
            # Some process managers below srun set PMI_RANK only; srun's own variables are complete.
            return self.rank_variable in environ and self.size_variable in environ
        return super().is_present(environ)

    def local_rank_and_size(
        self, environ: Mapping[str, str], size: int | None
    ) -> tuple[int, int] | tuple[None, None]:
        if "MPI_LOCALRANKID" not in environ:
            return slurm.local_rank_and_size(environ)
        return super().local_rank_and_size(environ, size)
