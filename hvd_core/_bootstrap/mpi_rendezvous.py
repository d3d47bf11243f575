"""Sends the store's address and the secret over MPI (mpi4py), for ranks on several hosts or a given communicator.

Only these few bytes are sent over MPI; the program may use MPI for itself. Called on the thread that runs init().
Starts MPI if the program has not done so, and leaves it running.
"""

import importlib.util
import json
import os
import socket
import sys
import time
from dataclasses import replace

from hvd_core._base.auth import new_secret
from hvd_core._base.sockets import BootstrapError, BootstrapTimeout
from hvd_core._bootstrap import encryption, mpi_library
from hvd_core._bootstrap.job_members import check_range
from hvd_core._bootstrap.routes import address_towards
from hvd_core._bootstrap.store import StoreServer

_BYTES = 1024
_LONGEST_ERROR = 800
OTHER_MPI = (
    "mpi4py uses another MPI than the launcher. Install mpi4py for the launcher's MPI, or start with "
    "horovodrun."
)


def available():
    """Whether mpi4py can be imported, without importing it."""
    return importlib.util.find_spec("mpi4py") is not None


def find_store(identity, deadline):
    """(the identity with its size, store address, secret, server or None). Raises BootstrapError."""
    MPI = start_mpi(identity.launcher)
    world = MPI.COMM_WORLD
    size, whole = world.Get_size(), identity.whole
    if (whole.size not in (None, size)) or world.Get_rank() != whole.rank:
        raise BootstrapError(
            f"{whole.launcher} says this is rank {whole.rank} of {whole.size}, mpi4py says "
            f"{world.Get_rank()} of {size}: {OTHER_MPI}"
        )
    whole = replace(whole, size=size)
    if identity.members is None:
        return whole, *hand_over(MPI, world, deadline)
    check_range(identity.members, whole)
    if identity.members == tuple(range(size)):
        return whole, *hand_over(MPI, world, deadline)
    identity = replace(identity, launched=whole)
    from hvd_core._bootstrap.mpi_members import gathered

    comm = gathered(MPI, identity, deadline)
    try:
        return identity, *hand_over(MPI, comm, deadline)
    finally:
        comm.Free()


def hand_over(MPI, comm, deadline):
    """(store address, secret, server or None) on every rank of ``comm``; rank 0 starts the server."""
    size = comm.Get_size()
    names = _exchange_names(comm, size, deadline)
    message = bytearray(_BYTES)
    server = problem = None
    if comm.Get_rank() == 0 and size > 1:
        try:
            encryption.refuse_readable_secret(len(set(names)) > 1, "MPI")
            secret = new_secret()
            server = StoreServer(address_towards(names), secret)
            offer = {"store": server.address, "secret": secret.hex()}
        except (BootstrapError, OSError) as error:
            problem = error
            offer = {
                "error": str(error).encode("ascii", "replace").decode()[:_LONGEST_ERROR]
            }  # the others wait for it
        text = json.dumps(offer).encode()
        message[: len(text)] = text
    try:
        finish(comm.Ibcast([message, MPI.BYTE], root=0), deadline, "hand over the store's address")
    except BaseException:
        if server is not None:
            server.close()
        raise
    if size == 1:
        return None, b"", None
    message = json.loads(message.rstrip(b"\0"))
    if problem is not None:
        raise problem
    if "error" in message:
        raise BootstrapError(message["error"])
    return message["store"], bytes.fromhex(message["secret"]), server


def start_mpi(launcher, before=None):
    """The initialised module mpi4py.MPI, on the MPI of the launcher. ``before`` is called if MPI is about to start, which
    waits for all ranks, without a limit and with the interpreter held. Raises BootstrapError."""
    fresh = "mpi4py.MPI" not in sys.modules
    hints = mpi_library.settings(launcher, os.environ) if fresh else {}
    os.environ.update(hints)
    try:
        import mpi4py

        if fresh:
            # The initialisation of a wrong MPI ends the process, so check which MPI it is first.
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BootstrapError(
            f"mpi4py is needed to bring the ranks together but cannot be used: {error}. Install it for the "
            "MPI you launch with (pip install mpi4py), or start with horovodrun."
        ) from error
    finally:
        for name in hints:
            del os.environ[name]
    vendor = MPI.get_vendor()[0]
    if launcher in mpi_library.FAMILIES and (vendor == "Open MPI") != (launcher == "openmpi"):
        raise BootstrapError(f"the launcher is that of {launcher}, mpi4py found {vendor}: {OTHER_MPI}")
    if MPI.Is_finalized():
        raise BootstrapError(
            "horovod: MPI has been finalized in this process, and cannot be started again. Call MPI.Finalize() after "
            "the last shutdown() only."
        )
    if not MPI.Is_initialized():
        if before is not None:
            before()
        alone = os.environ.get("HOROVOD_MPI_THREADS_DISABLE", "").strip() not in ("", "0")
        MPI.Init_thread(MPI.THREAD_SINGLE if alone else MPI.THREAD_MULTIPLE)
    return MPI


def _exchange_names(comm, size, deadline):
    own = socket.gethostname().encode()[:256].ljust(256, b"\0")
    all_names = bytearray(256 * size)
    finish(comm.Iallgather(own, all_names), deadline, "exchange host names")
    return [
        bytes(all_names[256 * i : 256 * (i + 1)]).rstrip(b"\0").decode(errors="replace") for i in range(size)
    ]


def finish(request, deadline, what):
    """Waits for an MPI request until the deadline. Raises BootstrapTimeout that says "MPI did not ``what``"."""
    while not request.Test():
        if deadline.passed():
            raise BootstrapTimeout(
                f"MPI did not {what} within {deadline.seconds:g} s: not all ranks have called init()"
            )
        time.sleep(0.001)
