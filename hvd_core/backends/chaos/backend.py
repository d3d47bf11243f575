"""The options of ``chaos``, which choose the fault, the operation and the rank; and the communicator that follows them.

Collectives are counted per process over all communicators, from 1, those that the engine adds included (an allgather
exchanges sizes first). A fault happens once: after a new init() the count goes on in the same process.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from hvd_core.backends.chaos.star import Star
from hvd_core.backends.errors import BackendCallError
from hvd_core.backends.python.backend import PythonBackend
from hvd_core.backends.python.options import Option
from hvd_core.version import __version__

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
    Option(
        "fail_how", "enum", "error", "error, device, exit, kill, hang", "How it fails; hang: until the abort."
    ),
    Option(
        "timeout_ms",
        "float",
        "0",
        "0..",
        "Most milliseconds that a rank waits for a message; 0: no limit of its own.",
    ),
    Option("seed", "int", "0", _COUNT, "Seed of the random losses; the same seed gives the same losses."),
)

_operations = itertools.count(1)  # of this process


class ChaosCommunicator(Star):
    """A star that injects the requested fault before or in each collective."""

    def __init__(self, faults: dict[str, Any], key: str, *job: Any) -> None:
        self.faults = faults
        self.aborted = threading.Event()
        super().__init__(*job, message_timeout_s=faults["timeout_ms"] / 1e3 or None)
        self.global_rank = self.world_ranks[self.rank]
        self.random = random.Random(f"{faults['seed']}/{self.global_rank}/{key}")
        self.drops_message = False

    def begin(self, coll: str) -> None:
        """Inject the faults that come before the collective, and decide whether its messages are lost."""
        number, faults = next(_operations), self.faults
        if (
            faults["delay_ms"]
            and self._concerns("delay_rank")
            and self.aborted.wait(faults["delay_ms"] / 1e3)
        ):
            raise BackendCallError("ABORTED", "aborted during the requested delay")
        self.drops_message = self._concerns("drop_rank") and (
            number == faults["drop_at_op"] or self.random.random() < faults["drop"]
        )
        if self.global_rank == faults["fail_rank"] and number == faults["fail_at_op"]:
            self._fail(
                faults["fail_how"],
                f"rank {self.global_rank} fails at operation {number} ({coll}), as requested",
            )

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

    def create(self, key, store, ranks, hosts, rank, size, deadline):
        try:
            faults = {option.name: self.option(option.name) for option in OPTIONS}
        except ValueError as error:
            raise BackendCallError("INVALID", str(error)) from None
        return ChaosCommunicator(faults, key, store, ranks, hosts, rank, size, deadline)

    def serves(self, coll: str, dtype: str, op: str) -> bool:
        # NumPy cannot calculate with these types; the engine composes their reductions.
        bits = dtype == "bfloat16" or dtype.startswith("float8")
        reduces = coll in ("allreduce", "reduce", "reducescatter")
        return super().serves(coll, dtype, op) and not (
            reduces and (bits or (dtype == "bool" and op == "avg"))
        )
