"""The launcher: `horovodrun` (launch.py) for commands, and `horovod.run` (run_api.py) for functions.

This file has the signature only, so that `import horovod` stays cheap; the implementation is imported at the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def run(
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int | None = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
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

    Each process calls `hvd.init()` itself. `func`, its arguments and its result are pickled by cloudpickle, and passed in
    unnamed memory that only the processes of this job hold; to other hosts, over the remote shell.

    Parameters: `hosts` ("localhost:4", "h1:2,h2:2") or `hostfile`: the hosts and their slots (default: `num_proc` slots
    here). `start_timeout`: seconds, both to reach the hosts and for all processes to call `init()`. `output_filename`: a
    folder for `rank.<n>/stdout` and `rank.<n>/stderr`. `executable`: the Python to run (default: this one). `ssh_port`,
    `ssh_identity_file`: for other hosts; the environment variable HOROVOD_REMOTE_SHELL names another command than ssh.
    `min_num_proc`, `max_num_proc`, `slots` (of a host without a number), `reset_limit`, `cooldown_range` (MIN, MAX in
    seconds), `host_discovery_script`: of elastic jobs (docs/elastic.md), whose `num_proc` is the number of processes to
    begin with. `min_num_proc` or `host_discovery_script` makes a job elastic; then the results are those of the first
    `min_num_proc` ranks of the last world. `use_mpi`: mpirun starts the processes, with `mpi_args` added to its
    arguments. `disable_cache` has no effect. `np`, `min_np`, `max_np`, `network_interface` are older spellings
    (DeprecationWarning).

    Raises ValueError for contradictory or invalid arguments, and RuntimeError if a host cannot be reached or a process
    fails (of an elastic job: if the job fails). The RuntimeError names the first process, its exit code and its
    traceback; its `__cause__` is the exception of that process, if it can be pickled.
    """
    arguments = dict(locals())
    from horovod._runner import run_api

    return run_api.run_from_arguments(arguments)


def __getattr__(name: str) -> Any:
    if name == "_HorovodArgs":  # of programs that fill in the options themselves; common/README.md names them
        from horovod._runner.arguments import HorovodArgs

        return HorovodArgs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
