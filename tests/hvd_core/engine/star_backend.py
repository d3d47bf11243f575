"""Backends written in Python for the tests, over the star of TCP connections that hvd-core's chaos backend has.

``MinimalBackend`` has the least that a backend may have, ``StarBackend`` everything but messages, ``MessengerBackend``
messages as well, ``ChaosBackend`` does what it has on a bad day.
"""

import os
import threading
import time

import numpy as np

from hvd_core.backends import BackendCallError, PythonBackend, PythonCommunicator
from hvd_core.backends._chaos import Star


class StarCommunicator(Star):
    """Everything but send and recv; waits as long as the collective's deadline says."""

    def __init__(self, key, store, ranks, hosts, rank, size, deadline):
        super().__init__(store, ranks, hosts, rank, size, deadline, message_timeout_s=None)


class MinimalCommunicator(PythonCommunicator):
    """Sums, broadcasts, gathers."""

    def __init__(self, *args):
        self.star = StarCommunicator(*args)

    def allreduce(self, *args):
        self.star.allreduce(*args)

    def broadcast(self, *args):
        self.star.broadcast(*args)

    def allgather(self, *args):
        self.star.allgather(*args)

    def abort(self):
        self.star.abort()

    def destroy(self):
        self.star.destroy()


class MinimalBackend(PythonBackend):
    name = "minimal-star"
    version = "0.1"
    communicator = MinimalCommunicator
    dtypes = ("float32",)
    reductions = ("sum",)


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

    def __init__(self, *args):
        self.stuck = threading.Event()  # until the abort, which may come before the call that hangs
        super().__init__(*args)

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
            if what == "hang":
                self.stuck.wait()
                raise ConnectionError("woken by the abort")
            if what == "forever":
                time.sleep(3600)
        return super().at_hub(mine, combine, call)

    def abort(self):
        super().abort()
        self.stuck.set()


class ChaosBackend(PythonBackend):
    name = "bad-day"
    communicator = ChaosCommunicator
    vectored = True


class MessengerCommunicator(StarCommunicator):
    """Also sends and receives, between rank 0 and each other rank."""

    sent = received = 0  # of this process

    def send(self, buffers, peer, call):
        for array in buffers:
            MessengerCommunicator.sent += 1
            self.send_message(peer, array.tobytes(), call)

    def recv(self, buffers, peer, call):
        for array in buffers:
            MessengerCommunicator.received += 1
            array[:] = np.frombuffer(self.receive_message(peer, call), array.dtype)


class MessengerBackend(StarBackend):
    name = "messenger"
    communicator = MessengerCommunicator

    def serves(self, coll, dtype, op):
        return super().serves(coll, dtype, op) and not (coll in ("send", "recv") and dtype == "int16")
