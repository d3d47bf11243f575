"""Names of the original's launcher without MPI that programs import. Any thread."""

from collections.abc import Callable

from horovod._compat import missing_attribute
from horovod._runner.environment import rank_environment as create_slot_env_vars
from horovod._runner.hosts import get_host_assignments, parse_hosts

__all__ = ["create_slot_env_vars", "get_host_assignments", "parse_hosts"]

__getattr__: Callable[[str], object] = missing_attribute(__name__)
