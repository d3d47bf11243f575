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
    """Calls `func(*args, **kwargs)` in new processes, one for each rank of a job.

    Each process calls `hvd.init()` itself. `func`, its arguments and its result are pickled by cloudpickle, and passed in
    unnamed memory that only the processes of this job hold; to other hosts, over the remote shell.

    `min_num_proc` or `host_discovery_script` makes a job elastic (docs/elastic.md): the number of its processes changes
    while it runs.

    Args:
        func: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: the number of processes; of an elastic job, with which it begins.
        min_num_proc: the fewest processes of an elastic job.
        max_num_proc: the most processes of an elastic job (default: as many as there are slots).
        slots: the slots of a host for which the discovery script prints no number.
        reset_limit: ends an elastic job after so many restarts of the training because of failures.
        cooldown_range: (MIN, MAX) seconds for which a host is not used after a failure.
        hosts: the hosts and their slots, as in "localhost:4" or "h1:2,h2:2" (default: `num_proc` slots here).
        hostfile: a file with a line "HOST slots=N" per host.
        host_discovery_script: a command that prints the hosts of an elastic job.
        start_timeout: seconds, both to reach the hosts and for all processes to call `init()`.
        ssh_port: of other hosts. The environment variable HOROVOD_REMOTE_SHELL names another command than ssh.
        ssh_identity_file: the private key of ssh.
        disable_cache: has no effect.
        output_filename: a folder for `rank.<n>/stdout` and `rank.<n>/stderr`.
        verbose: print the commands and processes of the job.
        use_gloo: horovodrun itself starts the processes (the default, unless the backend mpi is named).
        use_mpi: mpirun starts the processes.
        mpi_args: more arguments of mpirun.
        network_interface: an older spelling of `network_interfaces` (DeprecationWarning).
        network_interfaces: comma-separated network interfaces to use.
        executable: the Python to run (default: this one).
        np: an older spelling of `num_proc` (DeprecationWarning).
        min_np: an older spelling of `min_num_proc` (DeprecationWarning).
        max_np: an older spelling of `max_num_proc` (DeprecationWarning).

    Returns:
        The results in rank order; of an elastic job, those of the first `min_num_proc` ranks of the last world.

    Raises:
        ValueError: the arguments contradict each other, or are invalid.
        RuntimeError: a host cannot be reached, or a process fails (of an elastic job: the job fails). The error names the
            first process, its exit code and its traceback; its `__cause__` is the exception of that process, if it can be
            pickled.

    Example:
        >>> import horovod
        >>> def train(steps):
        ...     import horovod.torch as hvd
        ...     hvd.init()
        ...     return hvd.rank() * steps
        >>> horovod.run(train, args=(10,), num_proc=2)
        [0, 10]
    """
    arguments = dict(locals())
    from horovod._runner import run_api

    return run_api.run_from_arguments(arguments)


def __getattr__(name: str) -> Any:
    if name == "_HorovodArgs":  # of programs that fill in the options themselves; common/README.md names them
        from horovod._runner.arguments import HorovodArgs

        return HorovodArgs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
