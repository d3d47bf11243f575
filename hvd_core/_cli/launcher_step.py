"""The step of ``hvd doctor`` about the launcher: which one started this process, how it was recognised, how its ranks
would find each other, and a better way if there is one. Reads the environment and the PATH; starts nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from hvd_core._cli.steps import BAD, GOOD, NOTE, Step

# Variables of systems that give a job its machines and start no ranks: (variable, the system, the advice).
_SYSTEMS = (
    (
        "SLURM_JOB_ID",
        "a Slurm job, outside of a step",
        "start the ranks with 'srun --mpi=pmi2 -n N python train.py', or with horovodrun -H and the job's hosts",
    ),
    (
        "LSB_JOBID",
        "an LSF job",
        "start the ranks with horovodrun -H and the hosts in LSB_MCPU_HOSTS, or with mpirun; jsrun is not supported",
    ),
    (
        "KUBERNETES_SERVICE_HOST",
        "a pod of Kubernetes",
        "give every pod HOROVOD_RANK, HOROVOD_SIZE, the same HOROVOD_SECRET_KEY and HOROVOD_STORE=rank0://HOST:PORT "
        "(examples/kubernetes)",
    ),
)


def launcher_step(environ: Mapping[str, str]) -> Step:
    """The step. It is bad if ``init()`` would fail because of the variables, or for want of a way to the other ranks."""
    from hvd_core._bootstrap import identity as launcher_facts
    from hvd_core._bootstrap import rendezvous_way
    from hvd_core._bootstrap.identity import identify

    try:
        identity = identify(environ)
        way = rendezvous_way.choose(identity, environ)
    except ValueError as error:
        return Step("", "launcher", BAD, str(error))
    if identity.launcher == "single":
        return Step(
            "",
            "launcher",
            GOOD,
            "no launcher has started this process: alone, it is a job of one",
            _advice(environ),
        )
    here = "" if identity.local_size is None else f", {identity.local_size} of them on this host"
    text = f"{identity.launcher}: rank {identity.rank} of {identity.size or 'unknown'}{here}"
    used = [str(claim) for claim in launcher_facts.claims(environ)[:1]] or [f"{identity.variable} is set"]
    more = [f"recognised by: {used[0]}", f"rendezvous: {way.name}, because {way.why}"]
    differ = launcher_facts.disagreement(environ)
    more += [differ] if differ else []
    more += [f"better: {way.better}"] if way.better and way.name != "missing" else []
    if way.name == "missing":
        return Step(
            "", "launcher", BAD, f"{text}: its ranks cannot find each other", [*more, f"fix: {way.better}"]
        )
    return Step("", "launcher", NOTE if differ else GOOD, text, more)


def _advice(environ: Mapping[str, str]) -> list[str]:
    found = [f"this is {system}: {advice}" for name, system, advice in _SYSTEMS if name in environ]
    path = environ.get("PATH", "")
    starters = [
        command
        for command in ("horovodrun", "mpirun", "srun", "torchrun")
        if shutil.which(command, path=path)
    ]
    names = ", ".join(starters) or "no launcher; python -m horovod.runner.launch works"
    return [
        *found,
        f"launchers on the PATH: {names}",
    ]
