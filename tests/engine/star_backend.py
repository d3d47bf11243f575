"""Backends written in Python for the tests: rank 0 is the hub of a star of TCP connections.

``PoorBackend`` has the least that a backend may have, ``StarBackend`` everything, ``ChaosBackend`` does what it has
on a bad day.
"""

import os
import socket
import struct
import threading
import time
from functools import partial

import numpy as np

from hvd_core.backends import BackendCallError, PythonBackend, PythonCommunicator

_COMBINE = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


class PoorCommunicator(PythonCommunicator):
    """Sums, broadcasts, gathers."""

    def __init__(self, key, store, ranks, hosts, rank, size, deadline):
        self.rank, self.size = rank, size
        self.peers: dict[int, socket.socket] = {}
        left = max(0.01, deadline - time.monotonic())
        if rank == 0 and size > 1:
            with socket.create_server(("127.0.0.1", 0)) as server:
                server.settimeout(left)
                store.set("port", str(server.getsockname()[1]).encode())
                for _ in range(size - 1):
                    peer, _ = server.accept()
                    self.peers[peer.recv(1)[0]] = peer
            store.delete("port")
        elif rank > 0:
            peer = socket.create_connection(("127.0.0.1", int(store.get("port", deadline))), left)
            peer.sendall(bytes([rank]))
            self.peers[0] = peer

    def give(self, to, data, call):
        peer = self.peers[to]
        peer.settimeout(call.timeout())
        peer.sendall(struct.pack("q", len(data)) + data)

    def take(self, from_, call):
        self.peers[from_].settimeout(call.timeout())
        return self.exactly(from_, struct.unpack("q", self.exactly(from_, 8))[0])

    def exactly(self, from_, n):
        data = bytearray()
        while len(data) < n:
            piece = self.peers[from_].recv(min(n - len(data), 1 << 20))
            if not piece:
                raise BackendCallError("REMOTE", f"rank {from_} hung up")
            data += piece
        return bytes(data)

    def at_hub(self, mine, combine, call):
        """combine(everybody's bytes, in rank order) -> bytes for each rank; what comes back to this one."""
        if self.rank:
            self.give(0, mine, call)
            return self.take(0, call)
        results = combine([mine, *(self.take(r, call) for r in range(1, self.size))])
        for r in range(1, self.size):
            self.give(r, results[r], call)
        return results[0]

    def allreduce(self, inputs, outputs, op, prescale, postscale, call):
        for given, wanted in zip(inputs, outputs):
            combine = partial(self.reduced, given.dtype, op, prescale, postscale)
            data = self.at_hub(given.tobytes(), combine, call)
            wanted[:] = np.frombuffer(data, wanted.dtype)

    def reduced(self, dtype, op, prescale, postscale, all_):
        parts = [np.frombuffer(data, dtype) for data in all_]
        if prescale != 1.0:
            parts = [(p * prescale).astype(dtype) for p in parts]
        total = parts[0].copy()
        for part in parts[1:]:
            total = _COMBINE[op](total, part)
        if op == "avg":
            total = total / self.size if dtype.kind == "f" else np.trunc(total / self.size)
        if postscale != 1.0:
            total = total * postscale
        return [total.astype(dtype).tobytes()] * self.size

    def broadcast(self, buffers, root, call):
        for array in buffers:
            mine = array.tobytes() if self.rank == root else b""
            data = self.at_hub(mine, lambda all_: [all_[root]] * self.size, call)
            if self.rank != root:
                array[:] = np.frombuffer(data, array.dtype)

    def allgather(self, inputs, outputs, counts, call):
        for given, wanted, parts in zip(inputs, outputs, counts):
            assert given.size == parts[self.rank]
            data = self.at_hub(given.tobytes(), lambda all_: [b"".join(all_)] * self.size, call)
            wanted[:] = np.frombuffer(data, wanted.dtype)

    def abort(self):
        for peer in self.peers.values():
            peer.shutdown(socket.SHUT_RDWR)

    def destroy(self):
        for peer in self.peers.values():
            peer.close()


class PoorBackend(PythonBackend):
    name = "poor-star"
    version = "0.1"
    communicator = PoorCommunicator
    dtypes = ("float32",)
    reductions = ("sum",)


class StarCommunicator(PoorCommunicator):
    """Everything but send and recv."""

    def reduce(self, inputs, outputs, op, root, prescale, postscale, call):
        for i, given in enumerate(inputs):
            everything = np.empty_like(given)
            self.allreduce([given], [everything], op, prescale, postscale, call)
            if self.rank == root:
                outputs[i][:] = everything

    def reducescatter(self, inputs, outputs, counts, op, prescale, postscale, call):
        for given, wanted, parts in zip(inputs, outputs, counts):
            everything = np.empty_like(given)
            self.allreduce([given], [everything], op, prescale, postscale, call)
            at = sum(parts[: self.rank])
            wanted[:] = everything[at : at + parts[self.rank]]

    def alltoall(self, inputs, outputs, in_counts, out_counts, call):
        for given, wanted, to, from_ in zip(inputs, outputs, in_counts, out_counts):
            table = struct.pack(f"{self.size}q", *to)

            def cut(all_, width=given.itemsize):
                boxes = [b""] * self.size
                for data in all_:
                    at = 8 * self.size
                    for r, n in enumerate(struct.unpack(f"{self.size}q", data[:at])):
                        boxes[r] += data[at : at + n * width]
                        at += n * width
                return boxes

            wanted[:] = np.frombuffer(self.at_hub(table + given.tobytes(), cut, call), wanted.dtype)
            assert wanted.size == sum(from_)

    def barrier(self, call):
        self.at_hub(b"", lambda all_: all_, call)


class StarBackend(PythonBackend):
    name = "star"
    version = "1.2"
    communicator = StarCommunicator
    vectored = True

    def serves(self, coll, dtype, op):
        as_bits = dtype == "bfloat16" or dtype.startswith("float8")
        averaged = op == "avg" and dtype == "bool"
        return super().serves(coll, dtype, op) and not (
            coll in ("allreduce", "reduce", "reducescatter") and (as_bits or averaged)
        )


class ChaosCommunicator(StarCommunicator):
    """On rank CHAOS_RANK (default 1), collective number CHAOS_AT and later: does CHAOS."""

    done = 0
    began = threading.Event()  # a bad day

    def at_hub(self, mine, combine, call):
        self.done += 1
        if self.rank == int(os.environ.get("CHAOS_RANK", 1)) and self.done > int(
            os.environ.get("CHAOS_AT", 0)
        ):
            what = os.environ.get("CHAOS", "")
            self.began.set()
            if what == "raise":
                raise ZeroDivisionError("a bug on purpose")
            if what == "named":
                raise BackendCallError("DEVICE", "the card fell out")
            if what == "sleep":
                time.sleep(0.3)
            if what == "hang":  # until the abort
                self.stuck = threading.Event()
                self.stuck.wait()
                raise ConnectionError("woken by the abort")
            if what == "forever":
                time.sleep(3600)
        return super().at_hub(mine, combine, call)

    def abort(self):
        super().abort()
        if hasattr(self, "stuck"):
            self.stuck.set()


class ChaosBackend(PythonBackend):
    name = "bad-day"
    communicator = ChaosCommunicator
    vectored = True
