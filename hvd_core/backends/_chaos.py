"""The backend ``chaos``, for tests of the layers above a backend: computes correctly, and fails on request.

    HOROVOD_BACKEND=chaos HOROVOD_BACKEND_CHAOS_FAIL_RANK=1 HOROVOD_BACKEND_CHAOS_FAIL_AT_OP=3 horovodrun ...

Never chosen automatically, and not listed for users. Slow: all data go through rank 0, which is the hub of a star of
TCP connections. Reductions go in rank order, in float32 for 16-bit floats and exactly for integers. Each communicator's
own thread calls its methods, except abort().
"""

from __future__ import annotations

import hmac
import itertools
import os
import random
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hvd_core.backends._options import Option
from hvd_core.backends.errors import BackendCallError
from hvd_core.backends.python_backend import Array, PythonBackend, PythonCommunicator, Store
from hvd_core.version import __version__

Arrays: TypeAlias = list[Array]

__all__ = ["ChaosBackend"]


_COMBINE = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
_TOKEN = 32
_LENGTH = struct.Struct("<q")


class Star(PythonCommunicator):
    """One connection from every rank to rank 0, which accepts only processes that know the token in the job's store.

    ``message_timeout_s``: most seconds to wait for a message; None: only the collective's deadline limits the wait.
    """

    def __init__(
        self,
        store: Store,
        ranks: Sequence[int],
        hosts: Sequence[int],
        rank: int,
        size: int,
        deadline: float,
        message_timeout_s: float | None = None,
    ) -> None:
        self.world_ranks, self.rank, self.size = list(ranks), rank, size
        self.message_timeout_s = message_timeout_s
        self.peers: dict[int, socket.socket] = {}
        if size > 1 and rank == 0:
            self._gather(store, "127.0.0.1" if len(set(hosts)) == 1 else _own_address(), deadline)
        elif size > 1:
            found = store.get("star", deadline)
            host, _, port = found[_TOKEN:].decode().rpartition(":")
            self.peers[0] = socket.create_connection((host, int(port)), _left(deadline))
            self.peers[0].sendall(found[:_TOKEN] + _LENGTH.pack(rank))
        for peer in self.peers.values():
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _gather(self, store: Store, address: str, deadline: float) -> None:
        token = secrets.token_bytes(_TOKEN)
        with socket.create_server((address, 0)) as server:
            store.set("star", token + f"{address}:{server.getsockname()[1]}".encode())
            while len(self.peers) < self.size - 1:
                server.settimeout(_left(deadline))
                peer, _ = server.accept()
                peer.settimeout(min(5.0, _left(deadline)))
                try:
                    hello = _exactly(peer, _TOKEN + _LENGTH.size, "a new connection")
                except (OSError, BackendCallError):
                    hello = b""
                if hmac.compare_digest(hello[:_TOKEN], token):
                    self.peers[_LENGTH.unpack(hello[_TOKEN:])[0]] = peer
                else:
                    peer.close()
        store.delete("star")

    # ------------------------------------------------------------------------------------------------ messages

    def send_message(self, to: int, data: bytes, call: Any) -> None:
        """Send a message to a rank."""
        peer = self._ready(to, call)
        peer.sendall(_LENGTH.pack(len(data)) + data)

    def receive_message(self, source: int, call: Any) -> bytes:
        """The next message of a rank. TIMEOUT names the rank that was silent."""
        peer = self._ready(source, call)
        sender = f"rank {self.world_ranks[source]}"
        try:
            return _exactly(peer, _LENGTH.unpack(_exactly(peer, _LENGTH.size, sender))[0], sender)
        except TimeoutError:
            raise BackendCallError(
                "TIMEOUT", f"{sender} has sent nothing for {peer.gettimeout():g} s"
            ) from None

    def _ready(self, other: int, call: Any) -> socket.socket:
        limits = [t for t in (call.timeout(), self.message_timeout_s) if t is not None]
        peer = self.peers[other]
        peer.settimeout(max(0.001, min(limits)) if limits else None)
        return peer

    def at_hub(self, mine: bytes, combine: Callable[[list[bytes]], list[bytes]], call: Any) -> bytes:
        """Send ``mine`` to the hub, which calls ``combine(bytes of all ranks, in rank order) -> bytes for each rank``.
        Returns the bytes for this rank."""
        if self.rank:
            self.send_message(0, mine, call)
            return self.receive_message(0, call)
        results = combine([mine, *(self.receive_message(r, call) for r in range(1, self.size))])
        for r in range(1, self.size):
            self.send_message(r, results[r], call)
        return results[0]

    # -------------------------------------------------------------------------------------------- collectives

    def allreduce(
        self, inputs: Arrays, outputs: Arrays, op: str, prescale: float, postscale: float, call: Any
    ) -> None:
        for given, wanted in zip(inputs, outputs):
            wanted[:] = self._all_reduced(given, op, prescale, postscale, call)

    def reduce(
        self,
        inputs: Arrays,
        outputs: Arrays,
        op: str,
        root: int,
        prescale: float,
        postscale: float,
        call: Any,
    ) -> None:
        for i, given in enumerate(inputs):
            result = self._all_reduced(given, op, prescale, postscale, call)
            if self.rank == root:
                outputs[i][:] = result

    def reducescatter(
        self,
        inputs: Arrays,
        outputs: Arrays,
        counts: list[list[int]],
        op: str,
        prescale: float,
        postscale: float,
        call: Any,
    ) -> None:
        for given, wanted, parts in zip(inputs, outputs, counts):
            at = sum(parts[: self.rank])
            result = self._all_reduced(given, op, prescale, postscale, call)
            wanted[:] = result[at : at + parts[self.rank]]

    def broadcast(self, buffers: Arrays, root: int, call: Any) -> None:
        for array in buffers:
            mine = array.tobytes() if self.rank == root else b""
            data = self.at_hub(mine, lambda parts: [parts[root]] * self.size, call)
            if self.rank != root:
                array[:] = np.frombuffer(data, array.dtype)

    def allgather(self, inputs: Arrays, outputs: Arrays, counts: list[list[int]], call: Any) -> None:
        for given, wanted in zip(inputs, outputs):
            data = self.at_hub(given.tobytes(), lambda parts: [b"".join(parts)] * self.size, call)
            wanted[:] = np.frombuffer(data, wanted.dtype)

    def alltoall(
        self,
        inputs: Arrays,
        outputs: Arrays,
        in_counts: list[list[int]],
        out_counts: list[list[int]],
        call: Any,
    ) -> None:
        for given, wanted, to in zip(inputs, outputs, in_counts):
            table = struct.pack(f"<{self.size}q", *to)
            regroup = partial(self._by_receiver, given.itemsize)
            wanted[:] = np.frombuffer(self.at_hub(table + given.tobytes(), regroup, call), wanted.dtype)

    def barrier(self, call: Any) -> None:
        self.at_hub(b"", lambda parts: parts, call)

    def _all_reduced(self, given: Array, op: str, prescale: float, postscale: float, call: Any) -> Array:
        combine = partial(self._reduced, given.dtype, op, prescale, postscale)
        return np.frombuffer(self.at_hub(given.tobytes(), combine, call), given.dtype)

    def _reduced(
        self, dtype: np.dtype[Any], op: str, prescale: float, postscale: float, inputs: list[bytes]
    ) -> list[bytes]:
        wide = np.dtype(np.float32) if dtype == np.float16 else dtype
        parts = [np.frombuffer(data, dtype).astype(wide) for data in inputs]
        if prescale != 1.0:
            parts = [(part * prescale).astype(wide) for part in parts]
        if op == "avg" and dtype.kind in "iu":
            total = _exact_mean(parts, dtype)
        else:
            total = parts[0]
            for part in parts[1:]:
                total = _COMBINE[op](total, part)
            if op == "avg":
                total = total / wide.type(self.size)
        if postscale != 1.0:
            total = total * postscale
        return [total.astype(dtype).tobytes()] * self.size

    def _by_receiver(self, width: int, parts: list[bytes]) -> list[bytes]:
        results = [bytearray() for _ in range(self.size)]
        for data in parts:
            at = 8 * self.size
            for result, count in zip(results, struct.unpack(f"<{self.size}q", data[:at])):
                result += data[at : at + count * width]
                at += count * width
        return [bytes(result) for result in results]

    # ---------------------------------------------------------------------------------------------------- ends

    def abort(self) -> None:
        for peer in list(self.peers.values()):
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the connection is closed already

    def destroy(self) -> None:
        for peer in self.peers.values():
            peer.close()


def _exact_mean(parts: list[Array], dtype: np.dtype[Any]) -> Array:
    """The mean, computed without overflow and rounded towards zero."""
    exact: Any = sum(part.astype(object) for part in parts)
    size = len(parts)
    return np.array([abs(v) // size * (1 if v >= 0 else -1) for v in exact], dtype)


def _exactly(peer: socket.socket, count: int, sender: str) -> bytes:
    data = bytearray()
    while len(data) < count:
        received = peer.recv(min(count - len(data), 1 << 20))
        if not received:
            raise BackendCallError("REMOTE", f"{sender} closed the connection")
        data += received
    return bytes(data)


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())


def _own_address() -> str:
    """The address of the interface over which this process reaches the job's store; peers can reach it there too."""
    store, _, port = os.environ.get("HOROVOD_STORE", "").removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((store, int(port)))  # sends nothing
            address = str(probe.getsockname()[0])
        except (OSError, ValueError):
            address = socket.gethostbyname(socket.gethostname())
    if address.startswith("127."):
        address = socket.gethostbyname(socket.gethostname())
    return address


# The options of ``chaos``, which choose the fault, the operation and the rank; and the communicator that follows them.
#
# Collectives are counted per process over all communicators, from 1, those that the engine adds included (an allgather
# exchanges sizes first). A fault happens once: after a new init() the count goes on in the same process.

_RANK = "-1..1000000"
_COUNT = "0..1000000000"

OPTIONS = (
    Option("delay_ms", "float", "0", "0..", "Milliseconds that an operation waits before it begins."),
    Option("delay_rank", "int", "-1", _RANK, "The rank that is slow; -1: all."),
    Option("drop", "float", "0", "0..1", "Share of messages that are lost."),
    Option("drop_at_op", "int", "0", _COUNT, "The operation whose message is lost; 0: none."),
    Option("drop_rank", "int", "-1", _RANK, "The rank whose messages are lost; -1: all."),
    Option("fail_rank", "int", "-1", _RANK, "The rank that fails; -1: none."),
    Option("fail_at_op", "int", "1", "1..1000000000", "The operation at which it fails."),
    Option("fail_how", "enum", "error", "error, device, exit, kill, hang", "hang: until the abort."),
    Option(
        "timeout_ms", "float", "0", "0..", "Most milliseconds that a rank waits for a message; 0: no limit."
    ),
    Option("seed", "int", "0", _COUNT, "Seed of the random losses; the same seed gives the same losses."),
)

_operations = itertools.count(1)  # of this process


class ChaosCommunicator(Star):
    """A star that injects the requested fault before or in each collective."""

    def __init__(self, faults: dict[str, Any], key: str, *arguments: Any) -> None:
        self.faults = faults
        self.aborted = threading.Event()
        super().__init__(*arguments)
        self.message_timeout_s = faults["timeout_ms"] / 1e3 or None
        self.global_rank = self.world_ranks[self.rank]
        self.random = random.Random(f"{faults['seed']}/{self.global_rank}/{key}")
        self.drops_message = False

    def begin(self, coll: str) -> None:
        """Inject the faults that come before the collective, and decide whether its messages are lost."""
        number, faults = next(_operations), self.faults
        delays = faults["delay_ms"] and self._concerns("delay_rank")
        if delays and self.aborted.wait(faults["delay_ms"] / 1e3):
            raise BackendCallError("ABORTED", "aborted during the requested delay")
        self.drops_message = self._concerns("drop_rank") and (
            number == faults["drop_at_op"] or self.random.random() < faults["drop"]
        )
        if self.global_rank == faults["fail_rank"] and number == faults["fail_at_op"]:
            text = f"rank {self.global_rank} fails at operation {number} ({coll}), as requested"
            self._fail(faults["fail_how"], text)

    def _concerns(self, option: str) -> bool:
        return self.faults[option] in (-1, self.global_rank)

    def _fail(self, how: str, text: str) -> None:
        if how == "exit":
            os._exit(1)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        if how == "hang":
            self.aborted.wait()
            raise BackendCallError("ABORTED", text)
        raise BackendCallError("DEVICE" if how == "device" else "REMOTE", text)

    def send_message(self, to: int, data: bytes, call: Any) -> None:
        if not self.drops_message:
            super().send_message(to, data, call)

    def abort(self) -> None:
        self.aborted.set()
        super().abort()


def _with_faults(coll: str) -> Callable[..., None]:
    method = getattr(Star, coll)

    def run(self: ChaosCommunicator, *arguments: Any) -> None:
        self.begin(coll)
        method(self, *arguments)

    return run


for _coll in ("allreduce", "reduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier"):
    setattr(ChaosCommunicator, _coll, _with_faults(_coll))


class ChaosBackend(PythonBackend):
    """The backend ``chaos``; see the package."""

    name = "chaos"
    version = __version__
    communicator = ChaosCommunicator
    vectored = True
    options = OPTIONS

    def create(self, *arguments: Any, **_: Any) -> ChaosCommunicator:
        try:
            faults = {option.name: self.option(option.name) for option in OPTIONS}
        except ValueError as error:
            raise BackendCallError("INVALID", str(error)) from None
        return ChaosCommunicator(faults, *arguments)

    def serves(self, coll: str, dtype: str, op: str) -> bool:
        # NumPy cannot calculate with these types; the engine composes their reductions.
        bits = dtype == "bfloat16" or dtype.startswith("float8")
        reduces = coll in ("allreduce", "reduce", "reducescatter")
        return super().serves(coll, dtype, op) and not (
            reduces and (bits or (dtype == "bool" and op == "avg"))
        )
