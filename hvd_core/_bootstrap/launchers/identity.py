"""This process's rank and size, from the variables of its launcher. Only reads the given mapping. Any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvd_core._base.sockets import split_address
from hvd_core._bootstrap import launchers
from hvd_core._bootstrap.launchers.launcher import number

RANK0_SCHEME = "rank0://"
"""HOROVOD_STORE=rank0://HOST:PORT: the launcher's rank 0 serves the store there."""


@dataclass(frozen=True)
class Identity:
    """This process's place in the job, according to the launcher.

    If init() was given a part of the launcher's ranks, ``rank`` and ``size`` are those within that part.
    """

    rank: int
    size: int | None
    """None if only MPI knows it."""
    local_rank: int | None = None
    """None, as ``local_size``, if the launcher does not say it."""
    local_size: int | None = None
    launcher: str = "single"
    """Launcher.name; 'single' for a process that was started alone, 'mpi' for a communicator's without a known launcher,
    'custom' for a custom rendezvous."""
    store: str | None = None
    """'tcp://host:port', or 'rank0://host:port' if rank 0 is to serve it there; None, as ``secret``, if the job has to
    make its own."""
    secret: bytes | None = None
    job: tuple[str, ...] = ()
    """Strings that are equal on all processes of the job."""
    variable: str | None = None
    """The environment variable that gave the rank."""
    members: tuple[int, ...] | None = None
    """The launcher's ranks by rank, if this is a part of them."""
    launched: Identity | None = None
    """The Identity in the launcher's job, if this is a part of it."""
    epoch: int = 0
    """The number of this world in an elastic job, as its driver counts them; 0 in other jobs. Processes that come later
    have counted fewer init() calls, so the driver gives them the number."""

    @property
    def whole(self) -> Identity:
        """The Identity in the job as it was launched."""
        return self.launched or self

    @property
    def launcher_rank(self) -> int:
        """The rank in the job as it was launched."""
        return self.whole.rank


def identify(environ: Mapping[str, str]) -> Identity:
    """The Identity from ``environ``. Raises ValueError that names the variable if a value is not valid.

    >>> identify({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}).rank
    1
    """
    launcher = launchers.find(environ)
    if launcher is None:
        if "HOROVOD_EPOCH" in environ:
            number(environ, "HOROVOD_EPOCH", 0)
        return Identity(0, 1)
    rank, size = launcher.rank_and_size(environ)
    epoch = number(environ, "HOROVOD_EPOCH", 0) if "HOROVOD_EPOCH" in environ else 0
    local_rank, local_size = launcher.local_rank_and_size(environ, size)
    store, secret = _store(environ, launcher, size)
    return Identity(
        rank,
        size,
        local_rank,
        local_size,
        launcher.name,
        store,
        secret,
        launcher.job(environ),
        launcher.rank_variable,
        epoch=epoch,
    )


def _store(
    environ: Mapping[str, str], launcher: launchers.Launcher, size: int | None
) -> tuple[str, bytes] | tuple[None, None]:
    address, key = environ.get("HOROVOD_STORE"), environ.get("HOROVOD_SECRET_KEY")
    if size == 1:
        return None, None
    if address is None:
        if launcher.needs_store and size is not None:
            raise ValueError(
                "HOROVOD_RANK is set but HOROVOD_STORE is not, so this process cannot find the other "
                f"{size - 1}. "
                "Start the job with horovodrun, or unset HOROVOD_RANK and HOROVOD_SIZE. In a static environment, set "
                "HOROVOD_STORE=rank0://HOST:PORT (the host of rank 0, a free port) and the same HOROVOD_SECRET_KEY for "
                "all processes."
            )
        return None, None
    try:
        split_address(address.replace(RANK0_SCHEME, "tcp://", 1))
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
