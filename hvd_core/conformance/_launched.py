"""The kit inside a job that a launcher has started (mpirun, srun, horovodrun): its processes are the ranks.

Every process serves as a rank; rank 0 also leads, on a second thread. Orders and answers go through the job's store.
Ranks that hang cannot be replaced here, so the run ends with the first of them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from hvd_core._base.sockets import BootstrapTimeout
from hvd_core._bootstrap.store import StoreClient
from hvd_core._bootstrap.world import World, connect
from hvd_core.conformance._session import GRACE_S, Answers, Ranks, RanksBroken, resolve
from hvd_core.conformance._verdicts import FAIL
from hvd_core.conformance._worker import Worker


class LaunchedRanks(Ranks):
    """The ranks of a launcher's job, for a Session. Used by a second thread of rank 0; ``store`` is that thread's
    connection."""

    def __init__(self, store: StoreClient, size: int) -> None:
        self.size, self._store, self._turn, self._started = size, store, 0, False

    def start(self) -> None:
        """Waits until all ranks have opened the backend. Raises RanksBroken when one cannot."""
        if self._started:
            return
        self._started = True
        for rank, answer in self.collect(60.0).items():
            if answer is None or "ready" not in answer:
                raise RanksBroken(f"rank {rank}: {(answer or {}).get('broken', 'it does not answer')}")

    def order(self, case: str | None, serial: int) -> None:
        """Tells all ranks to run a case; None: to end."""
        self._turn += 1
        self._store.set(f"kit/order/{self._turn}", json.dumps({"case": case, "serial": serial}).encode())

    def collect(self, seconds: float, deaths: bool = False) -> Answers:
        """One answer of each rank; absent for one that does not answer in time."""
        answers: Answers = {}
        until = time.monotonic() + seconds
        while len(answers) < self.size and time.monotonic() < until:
            for rank in set(range(self.size)) - set(answers):
                try:
                    answer = self._store.get(f"kit/answer/{self._turn}/{rank}", 0.05)
                except BootstrapTimeout:
                    continue
                answers[rank] = found = json.loads(answer)
                if found.get("verdict") == FAIL:
                    until = min(until, time.monotonic() + GRACE_S)
        return answers

    def close(self) -> None:
        """Lets the ranks end."""
        self.order(None, 0)


def serve_or_lead(options: argparse.Namespace, run: Callable[[LaunchedRanks], int]) -> NoReturn:
    """The command within a job: serves as a rank. Rank 0 also calls ``run`` with the job's ranks; its result is the exit
    status."""
    world = connect()
    store = _store(world)
    if world.rank == 0:
        lead = threading.Thread(target=_lead, args=(run, world), name="hvd-lead", daemon=True)
        lead.start()
        _serve(options, world)
        lead.join()  # ends the process
    _serve(options, world)
    store.get("kit/over", 60.0)
    _exit(0)


def _lead(run: Callable[[LaunchedRanks], int], world: World) -> None:
    code = 3
    try:
        store = StoreClient(_store(world).address, world.secret)
        code = run(LaunchedRanks(store, world.size))
        store.set("kit/over", b"1")
        time.sleep(0.5)  # for the other ranks to have it before the store goes
    finally:
        # The launcher ends a rank that hangs, perhaps this process's main thread, after rank 0 has ended.
        _exit(code)


def _store(world: World) -> StoreClient:
    """The job's store; a job of several ranks has one."""
    store: StoreClient | None = world.store
    assert store is not None
    return store


def _serve(options: argparse.Namespace, world: World) -> None:
    turn, store = 0, _store(world)
    answer: dict[str, Any] = {}
    try:
        target = resolve(options.backend, options.library)
        config = {
            "name": target.name, "path": target.path, "python": target.python, "rank": world.rank,
            "size": world.size, "hosts": list(world.hosts), "modules": options.cases,
            "quick": options.quick, "patience": options.patience,
        }  # fmt: skip
        worker = Worker(config, store)
        answer = {"ready": os.getpid()}
    except Exception as problem:
        answer = {"broken": f"{type(problem).__name__}: {problem}"}
    store.set(f"kit/answer/0/{world.rank}", json.dumps(answer).encode())
    while True:
        turn += 1
        order = json.loads(store.get(f"kit/order/{turn}", 3600.0))
        if order["case"] is None:
            return
        result = worker.run(order["case"], order["serial"])
        store.set(f"kit/answer/{turn}/{world.rank}", json.dumps(result.as_dict()).encode())


def _exit(code: int) -> NoReturn:
    # C's exit, not Python's: Python would wait for a main thread that hangs, and a vendor's library may need its exit
    # handlers to leave its launcher in order.
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).exit(code)
    raise AssertionError("exit() returned")
