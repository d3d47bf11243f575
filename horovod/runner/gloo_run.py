"""Names of the original's launcher without MPI that programs import. Any thread."""

from typing import Any

from horovod._runner.environment import rank_environment as create_slot_env_vars
from horovod._runner.hosts import get_host_assignments, parse_hosts
from horovod.common.missing import missing_part

__all__ = ["create_slot_env_vars", "get_host_assignments", "parse_hosts"]

_MISSING = ("RendezvousServer", "gloo_run", "gloo_run_elastic", "launch_gloo", "launch_gloo_elastic")


def __getattr__(name: str) -> Any:
    if name in _MISSING:
        raise missing_part(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
