"""One rank of a scenario: runs in a process of its own, and returns how it ended."""

import ctypes
import os
import signal
import threading
import time

import numpy as np

from scenarios import OPERATION_SECONDS

STEPS = 60
LARGE = 4 << 20  # elements of float32


def environment(scenario, rank, address, secret, hanging):
    values = {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": scenario.size,
        "HOROVOD_STORE": address,
        "HOROVOD_SECRET_KEY": secret.hex(),
        "HOROVOD_BACKEND": scenario.backend,
        "HOROVOD_START_TIMEOUT": 600,
        "HOROVOD_LOG_LEVEL": "fatal",
        "HOROVOD_OPERATION_TIMEOUT_SECONDS": OPERATION_SECONDS,
        "HOROVOD_DYNAMIC_PROCESS_SETS": 1,
    }
    if scenario.backend == "chaos":
        if scenario.fault == "drop":
            values |= {"DROP_AT_OP": scenario.step, "DROP_RANK": scenario.victim}
        else:
            values |= {"FAIL_HOW": scenario.fault, "FAIL_RANK": scenario.victim, "FAIL_AT_OP": scenario.step}
        values = {
            name if name.startswith("HOR") else f"HOROVOD_BACKEND_CHAOS_{name}": v
            for name, v in values.items()
        }
    if scenario.backend == "hanging":
        library, inner = hanging
        values |= {"HOROVOD_BACKEND_PATH_HANGING": library, "HVD_TEST_HANG_OVER": inner}
        values |= {"HVD_TEST_HANG_CALL": scenario.fault, "HVD_TEST_HANG_RANK": scenario.victim}
        values |= {"HVD_TEST_HANG_FROM": scenario.step, "HVD_TEST_HANG_UNTIL": "abort"}
    return {name: str(value) for name, value in values.items()}


class Rank:
    """``at``: shared memory in which the victim notes the moment of its fault (seconds, CLOCK_MONOTONIC)."""

    def __init__(self, scenario, rank, at):
        self.scenario, self.rank, self.at = scenario, rank, at
        self.is_victim = rank == scenario.victim

    def run(self):
        """("fine", None) or (class of the exception, its text), and the seconds from the fault to that."""
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
            kinds = [kind.__name__ for kind in type(error).__mro__]
            how = (kinds, str(error))
        ended = time.monotonic()
        hvd.shutdown()
        return (*how, ended - self.at.value if self.at.value else None)

    def _work(self):
        scenario = self.scenario
        sets = scenario.phase == "sets"
        for step in range(1, STEPS + 1):
            mine = self.is_victim and not scenario.by_backend and step == scenario.step
            if mine and scenario.phase in ("first use", "steady", "sets"):
                self._fault()
            if sets and step % 5 == 0:
                self.hvd.remove_process_set(self.hvd.add_process_set(list(range(scenario.size - 1))))
            large = scenario.phase == "large" and step in (1, scenario.step)
            if large and mine:
                self._later(scenario.delay_ms)
            self._operate(LARGE if large else 12 * scenario.size, step)
        if scenario.by_backend and not self.at.value:
            self.at.value = time.monotonic()

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
        for link in self.hvd.runtime.world().links:
            shutdown(getattr(link, "sock_fd", getattr(link, "guard_fd", -1)), 2)
