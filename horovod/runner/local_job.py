"""One job on this machine, from checked arguments to its end: `horovodrun` and `horovod.run` meet here.

Opens the store where the ranks meet, gives each rank its environment, and runs the processes. Blocks its
thread.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Callable, Sequence

from horovod.runner.env import SECRET, job_environment, rank_environment, store_environment
from horovod.runner.hosts import (
    SlotInfo,
    check_interfaces,
    get_host_assignments,
    local_hosts,
    parse_host_files,
    parse_hosts,
)
from horovod.runner.output import Output
from horovod.runner.processes import Job, Outcome, RankSpec

# What the parser knows and a later version will do: dest -> (how it is called, what it belongs to).
_LATER = {
    "min_num_proc": ("--min-num-proc", "elastic jobs"),
    "max_num_proc": ("--max-num-proc", "elastic jobs"),
    "slots": ("--slots-per-host", "elastic jobs"),
    "elastic_timeout": ("--elastic-timeout", "elastic jobs"),
    "reset_limit": ("--reset-limit", "elastic jobs"),
    "cooldown_range": ("--blacklist-cooldown-range", "elastic jobs"),
    "host_discovery_script": ("--host-discovery-script", "elastic jobs"),
    "use_mpi": ("--mpi", "starting the ranks with mpirun"),
    "mpi_args": ("--mpi-args", "starting the ranks with mpirun"),
    "binding_args": ("--binding-args", "starting the ranks with mpirun"),
    "use_jsrun": ("--jsrun", "starting the ranks with jsrun"),
}


def check_supported(args: argparse.Namespace) -> None:
    """Raises NotImplementedError for what this version cannot do, naming option and alternative."""
    for dest, (name, feature) in _LATER.items():
        if getattr(args, dest, None) not in (None, False):
            hint = ""
            if "mpirun" in feature:
                hint = " To use MPI's own launcher, run: mpirun -np N python train.py"
            raise NotImplementedError(f"{name} is not supported yet by this version ({feature}).{hint}")


def assign_slots(args: argparse.Namespace) -> list[SlotInfo]:
    """The place of each rank. Raises ValueError for impossible hosts or counts, OSError for the hostfile."""
    if args.num_proc < 1:
        raise ValueError(f"The number of processes must be at least 1, found -np {args.num_proc}.")
    if args.hosts and args.hostfile:
        raise ValueError("Give either hosts or a hostfile, not both.")
    text = parse_host_files(args.hostfile) if args.hostfile else args.hosts or f"localhost:{args.num_proc}"
    return get_host_assignments(local_hosts(parse_hosts(text)), args.num_proc)


def run_job(
    args: argparse.Namespace,
    command: Sequence[str],
    started: Callable[[Job], None],
    extra_env: dict[str, str] | None = None,
    descriptors: Callable[[int], dict[str, int]] | None = None,
) -> Outcome:
    """Runs `command` once per rank and returns when nothing of it is left.

    `started` gets the Job before any process exists, for signal handlers. `descriptors(rank)` names open file
    descriptors the rank may keep, by the variable that tells it their number. Raises ValueError, OSError.
    """
    slots = assign_slots(args)
    if args.nics:
        check_interfaces(args.nics)
    env = {**job_environment(os.environ, args), **(extra_env or {})}
    if args.start_timeout is None:
        _check_timeout("HOROVOD_START_TIMEOUT", env.get("HOROVOD_START_TIMEOUT"))
    else:
        _check_timeout("--start-timeout", args.start_timeout)
    output = Output(len(slots), args.output_filename, bool(args.prefix_output_with_timestamp))
    # Imported late: the parser, --version and wrong arguments need no engine.
    from hvd_core.bootstrap.store import StoreServer

    secret = secrets.token_bytes(32)
    server = StoreServer(host="127.0.0.1", secret=secret)
    try:
        env.update(store_environment(server.address, secret))
        specs = []
        for slot in slots:
            kept = {} if descriptors is None else descriptors(slot.rank)
            variables = {**rank_environment(slot), **{name: str(number) for name, number in kept.items()}}
            specs.append(RankSpec(slot.rank, command, variables, tuple(kept.values())))
        if args.verbose:
            _describe(output, slots, env)
        job = Job(specs, env, output, bool(args.verbose))
        started(job)
        return job.run()
    finally:
        server.close()


def _check_timeout(name: str, value: str | int | None) -> None:
    if value is not None and not (str(value).isdecimal() and int(value) > 0):
        raise ValueError(f"{name} must be a positive number of seconds, found {value!r}.")


def _describe(output: Output, slots: Sequence[SlotInfo], env: dict[str, str]) -> None:
    output.stderr.note(
        f"horovodrun: {len(slots)} processes on {slots[0].hostname}, store {env['HOROVOD_STORE']}"
    )
    for name in sorted(env):
        if name.startswith("HOROVOD_") and name != SECRET:
            output.stderr.note(f"horovodrun: {name}={env[name]}")
