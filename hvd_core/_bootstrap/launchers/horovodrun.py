"""horovodrun, and static environments: variables of this project that a user sets for each process (Kubernetes, for
instance), with HOROVOD_STORE=rank0://HOST:PORT."""

from hvd_core._bootstrap.launchers.launcher import Launcher


class Horovodrun(Launcher):
    name = "horovodrun"
    rank_variable, size_variable = "HOROVOD_RANK", "HOROVOD_SIZE"
    local_variables = ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
    variable_prefixes = ("HOROVOD_",)
    command = "horovodrun"
    has_own_variables = True
    never_starts_mpi = True
    is_watched = False  # its supervisor ends the ranks
    needs_store = True
    not_elastic = "horovodrun started it with a fixed number of processes"
    elastic_remedy = (
        "horovodrun -np N --min-np M ... (and --host-discovery-script SCRIPT, if hosts come and go)"
    )
