"""This process's rank and size, from the variables of its launcher.

Only reads the given mapping (and /proc for the launcher's process). The first launcher whose variables are set is used. A
missing half of a pair, a contradiction or a value that is not a number is an error and never a guess, because a job that
falls apart into single processes would train wrongly.
"""

import hashlib
import logging
import os
import re
from dataclasses import dataclass

# Names of processes that start ranks. A wrapper script has the same variables as a launcher, so the name is needed to
# tell them apart.
LAUNCHER_NAMES = frozenset(
    ("mpirun", "mpiexec", "mpiexec.hydra", "mpiexec.gforker", "hydra_pmi_proxy", "prterun", "prte", "prted")
    + ("orterun", "orted", "slurmstepd", "torchrun")
)

PAIRS = (
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpich", "PMI_RANK", "PMI_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_LOCAL_PAIRS = {
    "horovodrun": ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "openmpi": ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "mpich": ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "torchrun": ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
}
_JOB_VARIABLES = {
    "openmpi": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
    "mpich": ("PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    "srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "pmix": ("PMIX_NAMESPACE",),
}


@dataclass(frozen=True)
class Identity:
    """This process's place in the job, according to the launcher.

    ``local_rank`` and ``local_size`` are None if the launcher does not tell them, ``size`` is None if only MPI knows it.
    ``store`` ('tcp://host:port', or 'rank0://host:port' if rank 0 is to serve it there) and ``secret`` (bytes) are None
    if the job has to make its own. ``job``: strings that are equal on all processes of the job. ``variable``: the
    environment variable that gave the rank. ``epoch``: the number of this world in an elastic job, as its driver counts
    them; 0 in other jobs. Processes that come later have counted fewer init() calls, so they are told the number.

    If init() was given a part of the launcher's ranks, ``rank`` and ``size`` are those within that part, ``members`` are
    the launcher's ranks by rank, and ``launched`` is the Identity in the launcher's job.
    """

    rank: int
    size: int | None
    local_rank: int | None = None
    local_size: int | None = None
    launcher: str = "single"
    store: str | None = None
    secret: bytes | None = None
    job: tuple = ()
    variable: str | None = None
    members: tuple | None = None
    launched: "Identity | None" = None
    epoch: int = 0

    @property
    def whole(self):
        """The Identity in the job as it was launched."""
        return self.launched or self

    @property
    def launcher_rank(self):
        """The rank in the job as it was launched."""
        return self.whole.rank


def identify(environ):
    """The Identity from ``environ``. Raises ValueError that names the variable if a value is not valid."""
    launcher, variable, rank, size = _rank_and_size(environ)
    epoch = _number(environ, "HOROVOD_EPOCH", 0) if "HOROVOD_EPOCH" in environ else 0
    if launcher == "single":
        return Identity(0, 1)
    local_rank, local_size = _local(environ, launcher, size)
    store, secret = _store(environ, launcher, size)
    job = tuple(f"{name}={environ[name]}" for name in _JOB_VARIABLES.get(launcher, ()) if name in environ)
    return Identity(rank, size, local_rank, local_size, launcher, store, secret, job, variable, epoch=epoch)


def _rank_and_size(environ):
    if "HOROVOD_RANK" in environ or "HOROVOD_SIZE" in environ:
        return "horovodrun", "HOROVOD_RANK", *_pair(environ, "HOROVOD_RANK", "HOROVOD_SIZE")
    in_step = "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ
    for launcher, rank, size in PAIRS:
        if launcher == "srun":
            # A batch script has SLURM_PROCID=0 and the job's task count, but is one process outside any step.
            found = in_step
        elif launcher == "mpich" and in_step:
            # Some process managers below srun set PMI_RANK only; srun's own variables are complete.
            found = rank in environ and size in environ
        else:
            found = rank in environ or size in environ
        if found:
            return launcher, rank, *_pair(environ, rank, size)
    if "PMIX_RANK" in environ:
        return "pmix", "PMIX_RANK", _number(environ, "PMIX_RANK", 0), None
    return "single", None, 0, 1


def _pair(environ, rank_name, size_name):
    for name, other in ((rank_name, size_name), (size_name, rank_name)):
        if name not in environ:
            raise ValueError(
                f"{other}={environ[other]!r} is set but {name} is not: the launcher must set both. "
                f"Unset {other} to run a single process."
            )
    size = _number(environ, size_name, 1)
    rank = _number(environ, rank_name, 0)
    if rank >= size:
        raise ValueError(f"{rank_name}={rank} is not below {size_name}={size}")
    return rank, size


def _number(environ, name, least):
    text = environ[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) < least:
        raise ValueError(f"{name}={environ[name]!r} is not an integer >= {least}")
    return int(text)


def _local(environ, launcher, size):
    if launcher == "srun" or (launcher == "mpich" and "MPI_LOCALRANKID" not in environ):
        return _slurm_local(environ)
    if launcher not in _LOCAL_PAIRS:
        return None, None
    rank_name, size_name = _LOCAL_PAIRS[launcher]
    if rank_name not in environ and size_name not in environ:
        return None, None
    local_rank, local_size = _pair(environ, rank_name, size_name)
    if local_size > size:
        raise ValueError(f"{size_name}={local_size} is more than the whole job of {size}")
    # A local rank above the rank is possible: an oversubscribed mpirun assigns local ranks out of order.
    return local_rank, local_size


def _slurm_local(environ):
    # SLURM_STEP_TASKS_PER_NODE is a list of runs: '4(x3),2'.
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if not {"SLURM_LOCALID", "SLURM_NODEID"} <= environ.keys() or not text:
        return None, None
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part)
        if not match:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not a list like '4(x3),2'")
        counts += [int(match[1])] * int(match[2] or 1)
    node = _number(environ, "SLURM_NODEID", 0)
    local_rank = _number(environ, "SLURM_LOCALID", 0)
    if node >= len(counts) or local_rank >= counts[node]:
        raise ValueError(
            f"SLURM_NODEID={node} and SLURM_LOCALID={local_rank} do not fit "
            f"SLURM_STEP_TASKS_PER_NODE={text!r}"
        )
    return local_rank, counts[node]


def _store(environ, launcher, size):
    address, key = environ.get("HOROVOD_STORE"), environ.get("HOROVOD_SECRET_KEY")
    if size == 1:
        return None, None
    if address is None:
        if launcher == "horovodrun":
            raise ValueError(
                "HOROVOD_RANK is set but HOROVOD_STORE is not, so this process cannot find the other "
                f"{size - 1}. "
                "Start the job with horovodrun, or unset HOROVOD_RANK and HOROVOD_SIZE. In a static environment, set "
                "HOROVOD_STORE=rank0://HOST:PORT (the host of rank 0, a free port) and the same HOROVOD_SECRET_KEY for "
                "all processes."
            )
        return None, None
    from hvd_core._base.sockets import split_address

    try:
        split_address(address.replace("rank0://", "tcp://", 1))
    except ValueError as error:
        raise ValueError(f"HOROVOD_STORE: {error}") from None
    if key is None:
        raise ValueError("HOROVOD_STORE is set but HOROVOD_SECRET_KEY is not: the launcher must set both")
    try:
        secret = bytes.fromhex(key)
    except ValueError:
        secret = b""
    if len(secret) < 16:
        # The value itself stays out of the message: logs are not secret.
        raise ValueError("HOROVOD_SECRET_KEY must be at least 32 hexadecimal digits")
    return address, secret


def launcher_process(variable):
    """'pid:start time' of the process that started the ranks of this host.

    It is the nearest ancestor that is a known launcher or does not carry ``variable``. It tells two jobs on
    one machine apart, also where the launcher gives the job no name of its own.
    """
    pid = os.getppid()
    while pid > 1:
        name, parent, started = process_status(pid)
        if parent is None:
            break
        if name in LAUNCHER_NAMES or not _carries(pid, variable):
            return f"{pid}:{started}"
        pid = parent
    return f"{pid}:0"


def private_facts(variable):
    """A digest of what only this user, and root, can read about the process of launcher_process(); "" if it cannot.

    It is equal on all ranks of this host. The addresses in the auxiliary vector are random and stay the same.
    """
    pid = launcher_process(variable).partition(":")[0]
    if int(pid) <= 1:
        return ""  # each rank may be in a container of its own, whose first process is not the others'
    try:
        with open(f"/proc/{pid}/auxv", "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        return ""


def process_status(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, tail = file.read().rpartition(b")")
    except OSError:
        return None, None, None
    fields = tail.split()
    return head.partition(b"(")[2].decode(errors="replace"), int(fields[1]), int(fields[19])


def _carries(pid, variable):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(entry.startswith(variable.encode() + b"=") for entry in file.read().split(b"\0"))
    except OSError:
        return False


# What the launchers' variables say about this process: all of them, also those that are not used.
#
# One launcher may have started another (srun starts mpirun's helpers), and then both have left variables. The inner one
# is
# right, and it is the one that identity.py reads first. Variables that a script has exported by hand look the same.
# Reads the given mapping only.

_log = logging.getLogger("horovod")
_ALL = (("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"), *PAIRS)


@dataclass(frozen=True)
class Claim:
    """A launcher's word: the texts of its two variables."""

    launcher: str
    variables: tuple
    rank: str
    size: str

    def __str__(self):
        return f"{self.launcher} says rank {self.rank} of {self.size} ({', '.join(self.variables)})"


def claims(environ):
    """The Claims of all launchers whose two variables are set, in the order in which they are believed."""
    return [
        Claim(launcher, (rank, size), environ[rank].strip(), environ[size].strip())
        for launcher, rank, size in _ALL
        if rank in environ and size in environ
    ]


def disagreement(environ):
    """The sentences about launchers that contradict the one that is believed, or ""."""
    found = claims(environ)
    others = [claim for claim in found[1:] if (claim.rank, claim.size) != (found[0].rank, found[0].size)]
    if not others:
        return ""
    return (
        f"The variables of {len(others) + 1} launchers are set and differ: {found[0]}, which is used; "
        f"{'; '.join(map(str, others))}. If the first is left over, unset its variables before the program starts."
    )


def warn_of_contradiction(identity, environ):
    """Logs a warning where the job is likely to be another one than the launcher has started: one process instead of
    several, or general variables (RANK) that no torchrun has set."""
    found = claims(environ)
    if not found or found[0].launcher == "horovodrun":
        return  # its variables are its own; nothing else sets them
    more = any(claim.size.isdigit() and int(claim.size) > 1 for claim in found[1:])
    by_hand = found[0].launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in environ
    if (identity.size == 1 and more) or by_hand:
        text = disagreement(environ)
        if text:
            _log.warning("%s", text)
