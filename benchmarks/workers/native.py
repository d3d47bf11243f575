"""Ranks of the alternatives in C++: the bare loops, the memory floor, and a backend through its table."""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np

from harness.rank import Alternative, env_rank, pin, serve

POINTER, INT, U64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64


def addresses(arrays) -> list:
    return [POINTER(array.ctypes.data) for array in arrays]


def buffer(array: np.ndarray) -> tuple:
    return POINTER(array.ctypes.data), U64(array.size)


class Native(Alternative):
    """Loads the shared object named in HVD_BENCH_NATIVE."""

    def __init__(self) -> None:
        self.rank, self.size = env_rank()
        super().__init__()
        self.library = ctypes.CDLL(os.environ["HVD_BENCH_NATIVE"])

    def place(self) -> tuple:
        return POINTER(self.shared.address), INT(self.rank), INT(self.size)


class BareLoop(Native):
    """The limit; option "chunk": bytes per chunk, 0 for the one-hop scheme."""

    def __init__(self) -> None:
        super().__init__()
        self.library.bare_open.restype = POINTER
        self.loop = POINTER(self.library.bare_open(*self.place()))

    def bind(self, array: np.ndarray, options: dict):
        arguments = self.loop, *buffer(array), U64(options["chunk"])
        return lambda: self.library.bare_once(*arguments)

    def timed(self, array: np.ndarray, iters: int, options: dict, stamps: np.ndarray) -> None:
        self.library.bare_timed(
            self.loop, *self.place(), *buffer(array), U64(options["chunk"]), INT(iters), *addresses(stamps)
        )


class Direct(Native):
    """The limit for buffers that all ranks map; options "block" and "ahead": see direct_once()."""

    def __init__(self) -> None:
        super().__init__()
        self.library.direct_buffer.restype = POINTER
        self.library.direct_largest.restype = U64

    def memory(self, count: int) -> np.ndarray:
        if count * 4 > self.library.direct_largest():
            raise ValueError(f"this loop has room for {self.library.direct_largest()} bytes")
        address = self.library.direct_buffer(POINTER(self.shared.address), INT(self.rank))
        return np.frombuffer((ctypes.c_float * count).from_address(address), dtype=np.float32)

    def bind(self, array: np.ndarray, options: dict):
        arguments = *self.place(), U64(array.size), U64(options["block"]), U64(options["ahead"])
        return lambda: self.library.direct_once(*arguments)

    def timed(self, array: np.ndarray, iters: int, options: dict, stamps: np.ndarray) -> None:
        ways = U64(options["block"]), U64(options["ahead"])
        self.library.direct_timed(*self.place(), *buffer(array), *ways, INT(iters), *addresses(stamps))


class Memory(Native):
    """One pass over the buffer in place, all ranks at once; "stream" and "exchange" as extra commands."""

    def reduces(self) -> bool:
        return False

    def timed(self, array: np.ndarray, iters: int, options: dict, stamps: np.ndarray) -> None:
        self.library.memory_timed(*self.place(), *buffer(array), INT(iters), *addresses(stamps))

    def extra(self, command: dict) -> object:
        return self.exchange(command) if command["do"] == "exchange" else self.stream(command)

    def exchange(self, command: dict) -> dict:
        stamps = np.zeros((2, command["iters"]), dtype=np.int64)
        chunk, chunks = U64(command["chunk"]), U64(command["bytes"] // command["chunk"])
        self.library.memory_exchange(*self.place(), chunk, chunks, INT(command["iters"]), *addresses(stamps))
        return {"start": stamps[0].tolist(), "end": stamps[1].tolist()}

    def stream(self, command: dict) -> dict:
        count, iters = command["bytes"] // 4, command["iters"]
        arrays = [np.ones(count, dtype=np.float32) for _ in range(3)]
        stamps = np.zeros((2, iters), dtype=np.int64)
        self.library.memory_stream(
            *self.place(),
            INT(command["kind"]),
            *addresses(arrays),
            U64(count),
            INT(iters),
            *addresses(stamps),
        )
        return {"start": stamps[0].tolist(), "end": stamps[1].tolist()}


class Table(Native):
    """The backend in HVD_BENCH_SHM_LIB, driven through hvd_comm_api by C++."""

    def __init__(self) -> None:
        super().__init__()
        self.library.table_open.restype = POINTER
        self.library.table_error.restype = ctypes.c_char_p
        text = ctypes.create_string_buffer(1024)
        path = os.environ["HVD_BENCH_SHM_LIB"].encode()
        handle = self.library.table_open(path, *self.place(), text, U64(len(text)))
        if not handle:
            raise RuntimeError(f"{path.decode()}: {text.value.decode()}")
        self.table = POINTER(handle)

    def bind(self, array: np.ndarray, options: dict):
        arguments = self.table, *buffer(array)

        def run() -> None:
            self.raise_on(self.library.table_once(*arguments))

        return run

    def raise_on(self, code: int) -> None:
        if code:
            raise RuntimeError(f"code {code}: {self.library.table_error(self.table).decode()}")

    def timed(self, array: np.ndarray, iters: int, options: dict, stamps: np.ndarray) -> None:
        code = self.library.table_timed(
            self.table, *self.place(), *buffer(array), INT(iters), *addresses(stamps)
        )
        self.raise_on(code)

    def close(self) -> None:
        self.library.table_close(self.table)


if __name__ == "__main__":
    pin(env_rank()[0])
    serve({"loop": BareLoop, "direct": Direct, "memory": Memory, "table": Table}[sys.argv[1]]())
