"""Starts a job: its ranks are started by horovodrun itself (here), by mpirun (mpi.py), or are those of an elastic job
(elastic_driver.py).

A rank of the backend "mpi" that mpirun has not started is alone in its MPI_COMM_WORLD. So mpirun starts a job that
names that backend, even without --mpi. Blocks its thread.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence

from horovod._runner.environment import (
    SECRET,
    backend_environment,
    rank_environment,
    remote_environment,
    store_environment,
)
from horovod._runner.failures import EndedRanks
from horovod._runner.hosts import SlotInfo, open_store, store_place
from horovod._runner.job import Job, Outcome
from horovod._runner.launch_spec import (
    LaunchSpec,
    Placement,
    check_command,
    check_encryption_library,
    check_proc,
)
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.output import Output
from horovod._runner.remote_ranks import RemoteRanks, RemoteShell, agent_words
from horovod._runner.site import RankSpec
from hvd_core._config.settings import encryption_wanted

BACKEND = "mpi"


def run_job(spec: LaunchSpec, started: Callable[[Job], None] = lambda job: None) -> Outcome:
    """Runs a job, and returns when none of its processes is left.

    Args:
        spec: the job.
        started: is called with the running job before any process exists, for signal handlers.

    Raises:
        ValueError: the job cannot run as it is described.
        OSError: processes or output files cannot be made.
        OutputClosedError: the reader of the output has gone.
    """
    source = None if spec.use_mpi else source_of_backend_mpi(os.environ)
    if spec.elastic is not None:
        if source is not None:
            raise ValueError(
                f"{source} asks for the backend '{BACKEND}', whose processes mpirun must start, and MPI ends all of them "
                "when one dies: an elastic job cannot use it. Choose another backend."
            )
        # Loading what only elastic jobs need would cost each start of horovodrun 10 ms.
        from horovod._runner.elastic_driver import run_elastic_job

        return run_elastic_job(spec, started)
    if source is not None and spec.num_proc > 1:
        if spec.use_gloo:
            raise ValueError(
                f"{source} asks for the backend '{BACKEND}', whose processes mpirun must start: started by horovodrun "
                "itself (--gloo) each would be alone in its MPI. Leave --gloo out, or choose another backend."
            )
        _note(f"{source} asks for the backend '{BACKEND}': mpirun starts the processes (as with --mpi)")
    if spec.use_mpi or (source is not None and spec.num_proc > 1):
        from horovod._runner.mpi import run_mpi_job

        return run_mpi_job(spec, started)
    for option, value in (("--mpi-args", spec.mpi_args), ("--binding-args", spec.binding_args)):
        if value:
            raise ValueError(f"{option} is for mpirun, which does not start this job. Add --mpi.")
    controller = os.environ.get("HOROVOD_CONTROLLER", "").strip().lower()
    if controller not in ("", "gloo"):
        _note(f"HOROVOD_CONTROLLER={controller} is ignored; mpirun starts the processes with --mpi")
    return _run_own_job(spec, started)


def _note(text: str) -> None:
    print(f"horovodrun: {text}", file=sys.stderr, flush=True)


def _run_own_job(spec: LaunchSpec, started: Callable[[Job], None]) -> Outcome:
    placement = spec.place()
    env = {**spec.env, **backend_environment(spec.env)}
    encrypted = encryption_wanted(env)
    local, remote = placement.local, placement.remote
    if local:
        check_command(spec.command)
        check_proc()
    shell = RemoteShell.of(spec) if remote else RemoteShell()
    if remote and encrypted:
        check_encryption_library()
    place = store_place(list(remote), spec.store_interfaces, shell.resolve)
    output = Output(len(placement.slots), spec.output_filename, bool(spec.prefix_output_with_timestamp))
    secret = secrets.token_bytes(32)
    server, addresses, address = open_store(place, secret)
    try:
        here = {**env, **store_environment(address, secret)}
        sites: list[LocalRanks | RemoteRanks] = []
        if local:
            sites.append(LocalRanks(_ranks(spec, local), here))
        for host, slots in remote.items():
            common = {**remote_environment(env), **store_environment(addresses[host], secret)}
            words = shell.command(host, agent_words(spec.python_there))
            sites.append(RemoteRanks(host, words, _ranks(spec, slots), common, addresses[host]))
        if spec.verbose:
            _describe(output, placement, here, server.address)
        ends = EndedRanks(address, secret)
        job = Job(sites, output, bool(spec.verbose), spec.start_timeout_s, ends=ends)
        started(job)
        return job.run()
    finally:
        server.close()


def _ranks(spec: LaunchSpec, slots: Sequence[SlotInfo]) -> list[RankSpec]:
    return [RankSpec(slot.rank, spec.command, rank_environment(slot), spec.function) for slot in slots]


def _describe(output: Output, placement: Placement, env: Mapping[str, str], store: str) -> None:
    output.stderr.note(f"horovodrun: {len(placement.slots)} processes on {placement}, store {store}")
    for name in sorted(env):
        if name.startswith("HOROVOD_") and name != SECRET:
            output.stderr.note(f"horovodrun: {name}={env[name]}")


def source_of_backend_mpi(environ: Mapping[str, str]) -> str | None:
    """The variable, or the line of a plugins.toml, that names the backend mpi, if that backend is installed here; else
    None.

    Faults of variables or files are ignored here, because the ranks report them. The older variables do not count: images
    set them, and without an mpirun that must not end the job; a rank warns that they are ignored."""
    from hvd_core._config import plugins_toml
    from hvd_core._config.selection_rules import ladder

    try:
        levels = ladder(environ, None, plugins_toml.load(environ).levels())
    except (ValueError, OSError):
        return None
    source = next(
        (r.source for level in levels if not level.soft for r in level.rules if BACKEND in r.names), None
    )
    return source if source is not None and _installed(environ) else None


def _installed(environ: Mapping[str, str]) -> bool:
    from hvd_core.backends import _discovery
    from hvd_core.backends._discovery import registry

    if environ.get(f"HOROVOD_BACKEND_PATH_{BACKEND.upper()}"):
        return True
    try:
        local = {found.name for found in registry.local()}
        return BACKEND in local | {found.name for found in _discovery.wheels()}
    except ValueError:
        return False
