"""mpirun of Open MPI, all versions: ORTE until 4, PRRTE from 5 on."""

from hvd_core._bootstrap.launchers.launcher import Launcher


class OpenMpi(Launcher):
    name = "openmpi"
    rank_variable, size_variable = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
    local_variables = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    job_variables = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
    variable_prefixes = ("OMPI_", "PMIX_")
    command = "mpirun"
    setting_option = "mpirun -x {name}"
    process_names = frozenset(("mpirun", "mpiexec", "prterun", "prte", "prted", "orterun", "orted"))
    starts_mpi = True
    mpi_libraries = ("libmpi.so.40",)
    not_elastic = "mpirun started it, and ends all processes of a job when one of them dies"
