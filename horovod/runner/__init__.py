"""The launcher: `horovodrun` (launch.py) and its twin for functions, `horovod.run` (run_api.py).

Only the signature lives here, so that `import horovod` stays cheap; the work is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def run(
    func: Callable[..., Any],
    args: tuple = (),
    kwargs: dict | None = None,
    num_proc: int | None = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls `func(*args, **kwargs)` in `num_proc` new processes; returns the results in rank order.

    Each process calls `hvd.init()` itself. `func`, its arguments and its result travel by cloudpickle through
    unnamed memory that only the processes of this job hold, and to other hosts through the remote shell.

    Parameters: `hosts` ("localhost:4", "h1:2,h2:2") or `hostfile` say where how many slots are (default: `num_proc`
    here); `start_timeout` is in seconds and bounds reaching the hosts, and the meeting of the processes in
    `init()`; `output_filename` is a folder that gets `rank.<n>/stdout` and `/stderr`; `executable` is the Python
    to run (default: this one); `ssh_port` and `ssh_identity_file` are for other hosts, which the environment
    variable HOROVOD_REMOTE_SHELL may reach in another way than by ssh; `use_mpi` has mpirun start the processes, with
    `mpi_args` among its arguments; `disable_cache` has no effect.
    `np`, `min_np`, `max_np`, `network_interface` are the older spellings (DeprecationWarning).

    Raises ValueError for contradictory or impossible arguments, NotImplementedError for what this version
    cannot do yet (elastic jobs), RuntimeError when a host cannot be reached or a process fails: the text
    names the first one, its exit code and its traceback, and the exception it raised is the `__cause__` where it can
    be pickled.
    """
    arguments = dict(locals())
    from horovod.runner import run_api

    return run_api.run_from_arguments(arguments)
