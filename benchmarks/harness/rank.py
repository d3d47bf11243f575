"""The rank's side of the benchmarks of one allreduce: what an alternative gives, and how it is measured.

A worker script makes an `Alternative` and calls `serve`. The conductor decides what is measured and when
(hvd_core/bench). Needs NumPy only, since some ranks live in environments of their own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import time

import numpy as np


def _serving():
    """The module hvd_core.bench._serving, by its file: an environment that has only an MPI has no hvd_core."""
    spec = importlib.util.spec_from_file_location("serving", os.environ["HVD_BENCH_SERVING"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_line = _serving()
env_rank, pin = _line.env_rank, _line.pin


class Shared:
    """Memory that the ranks of an alternative share: a barrier in the first page, then the alternative's own data."""

    def __init__(self) -> None:
        with open(os.environ["HVD_BENCH_SHARED"], "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


class Alternative:
    """One way to allreduce. Subclasses give `bind`; native ones also `timed`, to keep Python out of it."""

    rank: int
    size: int

    def __init__(self) -> None:
        self.shared = Shared()
        self._barrier = ctypes.CDLL(os.environ["HVD_BENCH_BARRIER"]).bench_barrier
        self._barrier.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]

    def barrier(self) -> None:
        """Meet the other ranks, spinning; for moments just before a measurement."""
        self._barrier(self.shared.address, self.rank, self.size)

    def memory(self, count: int) -> np.ndarray:
        """A buffer of so many float32, in the memory that this alternative reduces best."""
        return np.empty(count, dtype=np.float32)

    def bind(self, array: np.ndarray, options: dict):
        """Return a function without arguments that sums `array` (1-D float32) over all ranks in place."""
        raise NotImplementedError

    def timed(self, array: np.ndarray, iters: int, options: dict, stamps: np.ndarray) -> None:
        """Fill stamps[0, :iters] and stamps[1, :iters] (int64 ns): start and end of each run on this rank.

        Before run i the array is rewritten with `rank + 1 + i % 7`, untimed.
        """
        run, clock, barrier = self.bind(array, options), time.perf_counter_ns, self.barrier
        for i in range(iters):
            array.fill(self.rank + 1 + i % 7)
            barrier()
            begin = clock()
            run()
            stamps[:, i] = begin, clock()

    def reduces(self) -> bool:
        """False for a figure that is no allreduce, whose result is therefore not checked."""
        return True

    def extra(self, command: dict) -> object:
        """Other commands than "measure"."""
        raise ValueError(f"unknown command {command}")

    def close(self) -> None:
        """Leave in order."""


def verify(alternative: Alternative, count: int, options: dict) -> None:
    """One allreduce of data that depends on rank and index, against the sum computed here."""
    array = alternative.memory(count)
    index = np.arange(count, dtype=np.int64) % 1021
    array[:] = index * (alternative.rank + 1)
    run = alternative.bind(array, options)
    alternative.barrier()
    run()
    expected = (index * (alternative.size * (alternative.size + 1) // 2)).astype(np.float32)
    wrong = np.flatnonzero(array != expected)
    if wrong.size:
        i = wrong[0]
        raise ValueError(f"{count} elements: [{i}] is {array[i]}, expected {expected[i]}; {wrong.size} wrong")


def measure(alternative: Alternative, command: dict) -> dict:
    """Do one "measure" command: {"bytes", "iters", "options", "verify"}; see fleet.Fleet.measure."""
    count, iters = command["bytes"] // 4, command["iters"]
    stamps = np.zeros((2, iters), dtype=np.int64)
    if command["verify"] and alternative.reduces():
        verify(alternative, count, command["options"])
    array = alternative.memory(count)
    alternative.timed(array, iters, command["options"], stamps)
    last = alternative.size * (alternative.size + 1) // 2 + alternative.size * ((iters - 1) % 7)
    if alternative.reduces() and not (array == last).all():
        raise ValueError(f"{command['bytes']} bytes, run {iters - 1}: not {last} everywhere")
    return {"start": stamps[0].tolist(), "end": stamps[1].tolist()}


def serve(alternative: Alternative) -> None:
    """Answer the conductor until it says quit or goes away."""

    def answer(command: dict) -> object:
        if command["do"] == "measure":
            return measure(alternative, command)
        return alternative.extra(command)

    _line.serve(alternative.rank, answer, alternative.close)
