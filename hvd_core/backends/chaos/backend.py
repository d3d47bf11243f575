"""What goes wrong, when, and on whom: the options of ``chaos``, and the communicator that obeys them.

Operations are counted per process over all communicators, from 1, and the engine's own count too (an allgather exchanges
sizes first). A failure happens once: after a new init() the same process goes on.
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
from hvd_core.backends.python_backend import PythonBackend
from hvd_core.backends.python_options import Option
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
        "Most milliseconds that a message is waited for; 0: no limit of its own.",
    ),
    Option("seed", "int", "0", _COUNT, "Of what is left to chance; the same seed, the same losses."),
)

_operations = itertools.count(1)  # of this process


class ChaosCommunicator(Star):
    """A star whose every collective first asks what is to go wrong with it."""

    def __init__(self, plan: dict[str, Any], key: str, *job: Any) -> None:
        self.plan = plan
        self.stuck = threading.Event()
        super().__init__(*job, patience=plan["timeout_ms"] / 1e3 or None)
        self.me = self.world_ranks[self.rank]
        self.chance = random.Random(f"{plan['seed']}/{self.me}/{key}")
        self.lost = False

    def begin(self, coll: str) -> None:
        """What goes wrong before the operation; decides what goes wrong in it."""
        number, plan = next(_operations), self.plan
        if plan["delay_ms"] and self._concerns("delay_rank") and self.stuck.wait(plan["delay_ms"] / 1e3):
            raise BackendCallError("ABORTED", "aborted while it was being slow")
        self.lost = self._concerns("drop_rank") and (
            number == plan["drop_at_op"] or self.chance.random() < plan["drop"]
        )
        if self.me == plan["fail_rank"] and number == plan["fail_at_op"]:
            self._fail(
                plan["fail_how"],
                f"rank {self.me} fails at operation {number} ({coll}), as it was told",
            )

    def _concerns(self, option: str) -> bool:
        return self.plan[option] in (-1, self.me)

    def _fail(self, how: str, text: str) -> None:
        if how == "exit":
            os._exit(1)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        if how == "hang":
            self.stuck.wait()
            raise BackendCallError("ABORTED", text)
        raise BackendCallError("DEVICE" if how == "device" else "REMOTE", text)

    def give(self, to: int, data: bytes, call: Any) -> None:
        if not self.lost:
            super().give(to, data, call)

    def abort(self) -> None:
        self.stuck.set()
        super().abort()


def _unruly(coll: str) -> Callable[..., None]:
    method = getattr(Star, coll)

    def run(self: ChaosCommunicator, *arguments: Any) -> None:
        self.begin(coll)
        method(self, *arguments)

    return run


for _coll in ("allreduce", "reduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier"):
    setattr(ChaosCommunicator, _coll, _unruly(_coll))


class ChaosBackend(PythonBackend):
    """See the package."""

    name = "chaos"
    version = __version__
    communicator = ChaosCommunicator
    vectored = True
    options = OPTIONS

    def create(self, key, store, ranks, hosts, rank, size, deadline):
        try:
            plan = {option.name: self.option(option.name) for option in OPTIONS}
        except ValueError as error:
            raise BackendCallError("INVALID", str(error)) from None
        return ChaosCommunicator(plan, key, store, ranks, hosts, rank, size, deadline)

    def serves(self, coll: str, dtype: str, op: str) -> bool:
        # NumPy cannot calculate with these; the engine composes what is missing.
        bits = dtype == "bfloat16" or dtype.startswith("float8")
        reduces = coll in ("allreduce", "reduce", "reducescatter")
        return super().serves(coll, dtype, op) and not (
            reduces and (bits or (dtype == "bool" and op == "avg"))
        )
