"""PMI-1, the process manager's key-value space with a fence, over the descriptor that PMI_FD names.

`srun --mpi=pmi2` and the mpiexec of MPICH serve it to every process that they start. A line of words KEY=VALUE asks,
another one answers. One process per rank may connect. Under Slurm it may connect once only, so that MPI cannot start in
this process afterwards: Slurm would end the job. Nothing is sent when the connection ends, because "finalize" would let
the process manager wait for the other ranks. So the store is that of the launcher's rank 0, which serves every init(),
and PMI-1 is used once per process, by every process that the launcher started. Used on the thread that runs init().
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import sys
from collections.abc import Mapping

from hvd_core._base.auth import new_secret
from hvd_core._base.messages import LineBuffer, ProtocolError
from hvd_core._base.sockets import BootstrapError, BootstrapTimeout, Deadline, address_towards
from hvd_core._bootstrap.launchers.identity import Identity
from hvd_core._bootstrap.launchers.slurm import in_step
from hvd_core._bootstrap.rendezvous import mpi4py_support, rank0_store
from hvd_core._bootstrap.rendezvous.base import Rendezvous, RendezvousMethod
from hvd_core._bootstrap.rendezvous.launcher_store import PersistentRendezvous, next_count
from hvd_core._bootstrap.rendezvous.rank0_store import Rank0Store
from hvd_core._bootstrap.store import StoreServer, encryption

_LONGEST_ANSWER = 1 << 16
# A value has at most 1024 characters; the text is doubled on its way.
_LONGEST_ERROR = 400
_FINALIZE_S = 5.0


class Pmi1:
    """The connection to the process manager. Raises BootstrapError if PMI_FD does not lead to one."""

    def __init__(self, environ: Mapping[str, str], deadline: Deadline) -> None:
        self._deadline = deadline
        self._lines = LineBuffer(_LONGEST_ANSWER)
        text = environ["PMI_FD"]
        try:
            self._fd = os.dup(int(text))
        except (ValueError, OSError) as error:
            raise BootstrapError(
                f"PMI_FD={text} is no descriptor of this process ({error}). Does another program, which closes "
                "descriptors, stand between the launcher and Python? Start Python directly."
            ) from None
        try:
            self._ask("cmd=init pmi_version=1 pmi_subversion=1")
            self._space = self._ask("cmd=get_my_kvsname")["kvsname"]
        except BaseException:
            self.close()
            raise

    def put(self, key: str, value: str) -> None:
        """Writes a pair of texts without blanks; the other ranks see it after fence()."""
        self._ask(f"cmd=put kvsname={self._space} key={key} value={value}")

    def fence(self) -> None:
        """Waits until every process of the launcher has called it."""
        self._ask("cmd=barrier_in", "reach hvd.init() in every process that the launcher started")

    def get(self, key: str) -> str:
        """The text under ``key``."""
        return self._ask(f"cmd=get kvsname={self._space} key={key}")["value"]

    def close(self) -> None:
        """Closes this connection; PMI_FD itself stays open."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _ask(self, line: str, what: str = "answer") -> dict[str, str]:
        try:
            os.write(self._fd, line.encode() + b"\n")
            while (answer := self._lines.next_line()) is None:
                self._read(what)
        except BootstrapTimeout:
            raise
        except (OSError, ProtocolError) as error:
            raise BootstrapError(f"the launcher's process manager (PMI_FD) is gone: {error}") from error
        words = (word.partition("=") for word in answer.decode(errors="replace").split())
        found = {key: value for key, _, value in words}
        if found.get("rc", "0") != "0":
            raise BootstrapError(
                f"the launcher's process manager refused {line.split()[0]}: {answer[:200]!r}"
            )
        return found

    def _read(self, what: str) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(1000 * self._deadline.left()):
            raise BootstrapTimeout(
                f"the launcher's process manager (PMI-1) did not {what} within {self._deadline.seconds:g} s"
            )
        data = os.read(self._fd, _LONGEST_ANSWER)
        if not data:
            raise ConnectionError("it closed the connection")
        self._lines.add(data)


class OverPmi(RendezvousMethod):
    """The method 'pmi'."""

    def find_store(
        self, identity: Identity, environ: Mapping[str, str], deadline: Deadline
    ) -> tuple[Identity, Rendezvous]:
        count = next_count(identity)
        store = exchange_store(identity, environ, deadline)
        return identity, PersistentRendezvous(identity, store.address, store.secret, count, store)

    def attend(self, identity: Identity, environ: Mapping[str, str], deadline: Deadline) -> None:
        exchange_store(identity, environ, deadline).hold(identity.launcher_rank, deadline)


def exchange_store(identity: Identity, environ: Mapping[str, str], deadline: Deadline) -> Rank0Store:
    """The Rank0Store whose address and secret rank 0 publishes over PMI-1. Every process that the launcher started must
    call it. Raises BootstrapError, BootstrapTimeout."""
    found = rank0_store.known("pmi")
    if found is not None:
        return found
    if mpi4py_support.process_manager_is_used():
        raise BootstrapError(
            "an earlier init() of this process used PMI-1, which serves a process once, and failed. Start the job again."
        )
    mpi4py_support.note_process_manager_is_used()
    rank, size, server = identity.whole.rank, identity.whole.size, None
    assert size is not None
    pmi = Pmi1(environ, deadline)
    try:
        pmi.put(f"hvd-host-{rank}", _own_host_name())
        pmi.fence()
        if rank == 0:
            try:
                server, offer = _serve([pmi.get(f"hvd-host-{other}") for other in range(size)])
            except (BootstrapError, OSError) as error:
                offer = {"error": str(error)[:_LONGEST_ERROR]}  # the others wait for the fence
            pmi.put("hvd-store", json.dumps(offer).encode().hex())
        pmi.fence()
        offer = json.loads(bytes.fromhex(pmi.get("hvd-store")))
        if "error" in offer:
            raise BootstrapError(offer["error"])
    except BaseException:
        if server is not None:
            server.close()
        raise
    finally:
        pmi.close()
    if not in_step(environ):
        atexit.register(_finalize, dict(environ), os.getpid())
    found = Rank0Store(
        offer["store"], bytes.fromhex(offer["secret"]), size, server, deadline.seconds, all_come=True
    )
    rank0_store.remember("pmi", found)
    return found


def _serve(names: list[str]) -> tuple[StoreServer, dict[str, str]]:
    encryption.refuse_readable_secret(len(set(names)) > 1, "the launcher's process manager")
    secret = new_secret()
    server = StoreServer(address_towards(names), secret)
    return server, {"store": server.address, "secret": secret.hex()}


def _own_host_name() -> str:
    """The name of this host, as a text without blanks."""
    return "".join(socket.gethostname().split()) or "localhost"


def _finalize(environ: Mapping[str, str], pid: int) -> None:
    """At the exit, the last thing: the mpiexec of MPICH ends the other processes if one ends without that. (Slurm does
    not, and would let it wait for them.) If mpi4py has started MPI since, MPI's own end reports it: it comes after this
    function, needs the process manager until then, and Hydra serves no process that has reported its end."""
    MPI = sys.modules.get("mpi4py.MPI")
    if pid == os.getpid() and not (MPI is not None and MPI.Is_initialized()):
        finalize(environ, _FINALIZE_S)


def finalize(environ: Mapping[str, str], seconds: float) -> None:
    """Reports to the process manager that this process ends as it should. Waits for its answer, ``seconds`` at most; if
    it is gone, or another library has reported it, nothing happens."""
    try:
        fd = int(environ["PMI_FD"])
        os.write(fd, b"cmd=finalize\n")
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(1000 * seconds)
    except (ValueError, OSError):
        pass
