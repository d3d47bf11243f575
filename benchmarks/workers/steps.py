"""A rank of the calibration of benchmarks/simulate.py: allreduces of memory that no cache holds, and steps of
many of them."""

from __future__ import annotations

import time

from harness.rank import Alternative, env_rank, pin, serve

pin(env_rank()[0])

import numpy as np  # noqa: E402

import hvd_core as hvd  # noqa: E402


class Steps(Alternative):
    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        super().__init__()

    def extra(self, command: dict) -> dict:
        """{"do": "one", "bytes", "over", "iters"}: single allreduces by turns over so many bytes of buffers.
        {"do": "list", "name", "sizes", "compute_us", "iters"}: a step that computes, submits the list, and waits
        for all of it."""
        run = self._one(command) if command["do"] == "one" else self._list(command)
        stamps = np.zeros((2, command["iters"]), dtype=np.int64)
        for i in range(-3, command["iters"]):
            self.barrier()
            begin = time.perf_counter_ns()
            run()
            stamps[:, max(0, i)] = begin, time.perf_counter_ns()
        return {"start": stamps[0].tolist(), "end": stamps[1].tolist()}

    def _one(self, command: dict):
        elements = command["bytes"] // 4
        buffers = [
            np.zeros(elements, "f4") for _ in range(max(1, min(4096, command["over"] // command["bytes"])))
        ]
        for buffer in buffers:
            buffer.fill(0)
        turn = [0]

        def run() -> None:
            turn[0] = (turn[0] + 1) % len(buffers)
            hvd.allreduce_(buffers[turn[0]], name=f"one.{elements}", op=hvd.Sum)

        return run

    def _list(self, command: dict):
        tensors = [np.empty(size // 4, "f4") for size in command["sizes"]]
        for tensor in tensors:
            tensor.fill(0)
        named = [(tensor, f"{command['name']}.{i}") for i, tensor in enumerate(tensors)]
        compute_ns = int(command["compute_us"] * 1000)

        def run() -> None:
            end = time.perf_counter_ns() + compute_ns
            while time.perf_counter_ns() < end:
                pass
            for handle in [hvd.allreduce_async_(t, name=name, op=hvd.Sum) for t, name in named]:
                hvd.synchronize(handle)

        return run

    def close(self) -> None:
        hvd.shutdown()


if __name__ == "__main__":
    serve(Steps())
