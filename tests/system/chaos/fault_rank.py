"""One rank of a scenario: runs in a process of its own, and returns how it ended.

As a program, under a launcher: python fault_rank.py SEED FOLDER. Files in the folder tell how it ended.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from fault_scenarios import OPERATION_SECONDS, scenario

STEPS = 60
LARGE = (4 << 20) // 12 * 12  # elements of float32, in as many parts as there are ranks


def environment(chosen, hanging):
    """The variables of all ranks; ``hanging``: the libraries of the backend hanging and of the one inside it."""
    values = {
        "HOROVOD_BACKEND": chosen.backend,
        "HOROVOD_LOG_LEVEL": "fatal",
        "HOROVOD_OPERATION_TIMEOUT_SECONDS": OPERATION_SECONDS,
        "HOROVOD_DYNAMIC_PROCESS_SETS": 1,
    }
    if not chosen.ends_unseen:  # else after the 30 s of a program that sets none
        values["HOROVOD_START_TIMEOUT"] = 600
    if chosen.fault == "stop":  # it may not have submitted its operation
        values |= {"HOROVOD_STALL_CHECK_TIME_SECONDS": 1, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 3}
    if chosen.backend == "chaos":
        options = {"FAIL_HOW": chosen.fault, "FAIL_RANK": chosen.victim, "FAIL_AT_OP": chosen.step}
        if chosen.fault == "drop":
            options = {"DROP_AT_OP": chosen.step, "DROP_RANK": chosen.victim}
        values |= {f"HOROVOD_BACKEND_CHAOS_{name}": value for name, value in options.items()}
    if chosen.backend == "hanging":
        library, inner = hanging
        values |= {"HOROVOD_BACKEND_PATH_HANGING": library, "HVD_TEST_HANG_OVER": inner}
        values |= {"HVD_TEST_HANG_CALL": chosen.fault, "HVD_TEST_HANG_RANK": chosen.victim}
        values |= {"HVD_TEST_HANG_FROM": chosen.step, "HVD_TEST_HANG_UNTIL": "abort"}
    return {name: str(value) for name, value in values.items()}


class FaultFile:
    """The moment of the fault, in a file that the ranks of a launcher share; see Rank."""

    def __init__(self, path):
        self.path = path

    @property
    def value(self):
        try:
            return float(self.path.read_text() or 0)
        except FileNotFoundError:
            return 0.0

    @value.setter
    def value(self, seconds):
        self.path.write_text(str(seconds))


class Rank:
    """``at``: its ``value`` is the moment of the fault (seconds, CLOCK_MONOTONIC), which the victim sets; 0: not yet."""

    def __init__(self, chosen, rank, at):
        self.scenario, self.rank, self.at = chosen, rank, at
        self.is_victim = rank == chosen.victim

    def run(self):
        """The names of the classes of the exception ("fine": no exception), its text, and the seconds from the fault
        to that."""
        import hvd_core as hvd

        self.hvd = hvd
        how = ("fine", None)
        try:
            if self.is_victim and self.scenario.phase == "init":
                self._later(self.scenario.delay_ms)
            hvd.init()
            self._work()
            if self.is_victim and self.scenario.phase == "shutdown":
                self._fault()
            hvd.shutdown()
        except BaseException as error:
            how = ([kind.__name__ for kind in type(error).__mro__], str(error))
        ended = time.monotonic()
        hvd.shutdown()
        return (*how, ended - self.at.value if self.at.value else None)

    def _work(self):
        chosen = self.scenario
        sets = chosen.phase == "sets"
        for step in range(1, STEPS + 1):
            mine = self.is_victim and not chosen.by_backend and step == chosen.step
            if mine and chosen.phase in ("first use", "steady", "sets"):
                self._fault()
            if sets and step % 5 == 0:
                self.hvd.remove_process_set(self.hvd.add_process_set(list(range(chosen.size - 1))))
            if self.is_victim and chosen.by_backend and step <= chosen.step:
                self.at.value = time.monotonic()  # at the latest in the operation that fails
            large = chosen.phase == "large" and step in (1, chosen.step)
            if large and mine:
                self._later(chosen.delay_ms)
            self._operate(LARGE if large else 12 * chosen.size, step)

    def _operate(self, count, step):
        hvd, name = self.hvd, self.scenario.operation
        x = np.full(count, float(self.rank + 1), np.float32)
        total = sum(range(1, self.scenario.size + 1))
        if name == "allreduce":
            assert hvd.allreduce(x, op=hvd.Sum, name="x")[-1] == total
        elif name == "adasum":
            hvd.allreduce(x, op=hvd.Adasum, name="x")
        elif name == "grouped":
            assert hvd.grouped_allreduce([x, x[:5]], op=hvd.Sum, name="x")[1][0] == total
        elif name == "allgather":
            assert hvd.allgather(x, name="x")[-1] == self.scenario.size
        elif name == "broadcast":
            assert hvd.broadcast(x, step % self.scenario.size, name="x")[0] == step % self.scenario.size + 1
        elif name == "alltoall":
            assert np.ravel(hvd.alltoall(x, name="x"))[-1] == self.scenario.size
        elif name == "reducescatter":
            assert hvd.reducescatter(x, op=hvd.Sum, name="x")[0] == total
        else:
            hvd.barrier()

    def _later(self, delay_ms):
        timer = threading.Timer(delay_ms / 1e3, self._fault)
        timer.daemon = True
        timer.start()

    def _fault(self):
        fault = self.scenario.fault
        self.at.value = time.monotonic()
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.startswith("exit"):
            os._exit(int(fault[5:]))
        elif fault == "leave":
            self.hvd.shutdown()
            raise SystemExit
        elif fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "cut":
            self._cut_links()

    def _cut_links(self):
        shutdown = ctypes.CDLL(None).shutdown
        for link in self.hvd._runtime.runtime.world().links:
            shutdown(getattr(link, "sock_fd", getattr(link, "guard_fd", -1)), 2)


def main(seed, folder):
    """A rank of a launcher. Fails if the job has failed, as a program does that does not catch the error."""
    from hvd_core._bootstrap.launchers.identity import identify

    chosen, folder = scenario(int(seed)), Path(folder)
    rank = identify(os.environ).rank
    result = Rank(chosen, rank, FaultFile(folder / "fault")).run()
    written = folder / f"writing {rank}"
    written.write_text(json.dumps(result))
    written.rename(folder / f"rank {rank}")
    if result[0] == "fine" or "SystemExit" in result[0]:
        return 0
    print(f"{result[0][0]}: {result[1]}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
