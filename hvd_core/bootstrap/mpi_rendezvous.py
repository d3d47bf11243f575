"""Hands the store's address and the secret over MPI (mpi4py), where the ranks of a job span hosts.

Nothing but these few bytes travels over MPI; the process may go on using MPI for itself. Called on the thread
that runs init(). MPI is started here if the program has not done so, and is left running.
"""

import importlib.util
import json
import os
import site
import socket
import sys
import time

from .auth import new_secret
from .store_server import StoreServer
from .wire import BootstrapError, BootstrapTimeout

_BYTES = 1024
_LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
_OTHER_MPI = (
    "mpi4py uses another MPI than the launcher. Install mpi4py for the launcher's MPI, or start with "
    "horovodrun."
)


def available():
    """Whether mpi4py can be imported, without importing it."""
    return importlib.util.find_spec("mpi4py") is not None


def meet(identity, deadline):
    """(size, store address, secret, server or None). Raises BootstrapError."""
    MPI = _start_mpi(identity.launcher)
    world = MPI.COMM_WORLD
    size = world.Get_size()
    if (identity.size not in (None, size)) or world.Get_rank() != identity.rank:
        raise BootstrapError(
            f"{identity.launcher} says this is rank {identity.rank} of {identity.size}, mpi4py says "
            f"{world.Get_rank()} of {size}: {_OTHER_MPI}"
        )
    names = _exchange_names(world, size, deadline)
    message = bytearray(_BYTES)
    server = None
    if identity.rank == 0 and size > 1:
        secret = new_secret()
        server = StoreServer(_address_towards(names), secret)
        text = json.dumps({"store": server.address, "secret": secret.hex()}).encode()
        message[: len(text)] = text
    try:
        _finish(world.Ibcast([message, MPI.BYTE], root=0), deadline, "hand over the store's address")
    except BaseException:
        if server is not None:
            server.close()
        raise
    if size == 1:
        return 1, None, b"", None
    told = json.loads(message.rstrip(b"\0"))
    return size, told["store"], bytes.fromhex(told["secret"]), server


def _start_mpi(launcher):
    """The mpi4py.MPI module, initialised, of the MPI that launched this process."""
    fresh = "mpi4py.MPI" not in sys.modules
    # A wheel of mpi4py serves several MPIs and takes the first it finds unless told.
    hint = fresh and launcher in _LIBRARIES and not {"MPI4PY_MPIABI", "MPI4PY_LIBMPI"} & os.environ.keys()
    if hint:
        os.environ["MPI4PY_LIBMPI"] = _where(_LIBRARIES[launcher])
    try:
        import mpi4py

        if fresh:
            # The wrong MPI does not fail in its initialisation, it ends the process: look at it first.
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BootstrapError(
            f"mpi4py is needed to bring the ranks together but cannot be used: {error}. Install it for the "
            "MPI you launch with (pip install mpi4py), or start with horovodrun."
        ) from error
    finally:
        if hint:
            del os.environ["MPI4PY_LIBMPI"]
    vendor = MPI.get_vendor()[0]
    if launcher in _LIBRARIES and (vendor == "Open MPI") != (launcher == "openmpi"):
        raise BootstrapError(f"the launcher is that of {launcher}, mpi4py found {vendor}: {_OTHER_MPI}")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI


def _where(library):
    """Where to look for ``library``: where a wheel would install it, then wherever the system finds it."""
    places = [os.path.join(prefix, "lib", library) for prefix in (sys.prefix, site.getuserbase())]
    return os.pathsep.join([place for place in places if os.path.exists(place)] + [library])


def _exchange_names(world, size, deadline):
    own = socket.gethostname().encode()[:256].ljust(256, b"\0")
    everybody = bytearray(256 * size)
    _finish(world.Iallgather(own, everybody), deadline, "exchange host names")
    return [
        bytes(everybody[256 * i : 256 * (i + 1)]).rstrip(b"\0").decode(errors="replace") for i in range(size)
    ]


def _finish(request, deadline, what):
    # Polled, because MPI's own wait knows no deadline.
    while not request.Test():
        if deadline.passed():
            raise BootstrapTimeout(
                f"MPI did not {what} within {deadline.seconds:g} s: not all ranks have called init()"
            )
        time.sleep(0.001)


def _address_towards(names):
    """The address of the interface that leads to the other hosts; loopback when there are none."""
    own = socket.gethostname()
    for name in names:
        if name == own:
            continue
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
            # Connecting a datagram socket sends nothing; it asks the routing table.
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(target)
                return sock.getsockname()[0]
        except OSError as error:
            raise BootstrapError(
                f"rank 0 cannot reach host {name!r}, which takes part in the job: {error}. Make its name "
                "resolvable here, or start with horovodrun."
            ) from error
    return "127.0.0.1"
