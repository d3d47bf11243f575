"""Any launcher that speaks PMIx and sets no variables of its own: only MPI knows the size of the job."""

from hvd_core._bootstrap.launchers.launcher import Launcher


class Pmix(Launcher):
    name = "pmix"
    rank_variable, size_variable = "PMIX_RANK", None
    job_variables = ("PMIX_NAMESPACE",)
    variable_prefixes = ("PMIX_",)
    starts_mpi = True
