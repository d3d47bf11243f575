"""Process of benchmarks/gpu.py: the device table's batched copy, called directly, beside one copy of as many bytes.

Nothing of the engine takes part. The device's own events are the clock.
"""

from __future__ import annotations

import ctypes as C
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.devices import write
from harness.shapes import resnet50
from hvd_core.conformance import _abi
from hvd_core.conformance._abi import Buf, CopyItem, P, new
from hvd_core.conformance._backend import Backend
from hvd_core.conformance._comm import DeviceSpace
from hvd_core.conformance._session import resolve

FLOAT32, FLOAT16, BFLOAT16 = 7, 6, 10
ALIGN = 256


class Packer:
    """161 gradients that lie apart, and one buffer for all of them."""

    def __init__(self, space: DeviceSpace, counts: list[int]) -> None:
        self.space, self.backend = space, space.backend
        self.counts, self.total = counts, sum(counts)
        props = new(_abi.DeviceProps)
        self.backend.call("device", "props", space.device, C.byref(props))
        self.name = props.arch.decode()
        self.limit = props.batch_limit or len(counts)
        place = 0
        self.offsets = []
        for count in counts:
            self.offsets.append(place)
            place += -(-4 * count // ALIGN) * ALIGN
        self.room = place
        _, self.apart = space.allocate(_abi.MEM_DEVICE, place)
        _, self.packed = space.allocate(_abi.MEM_DEVICE, place)

    def batch(self, to_type: int = FLOAT32, width: int = 4, scale: float = 0.0, back: bool = False):
        """A function that enqueues the batch; its items are made once, as an engine would have them at hand."""
        items = (CopyItem * len(self.counts))()
        at = 0
        for item, count, offset in zip(items, self.counts, self.offsets):
            item.hdr.struct_size, item.hdr.major = C.sizeof(CopyItem), 1
            apart = Buf(self.apart.base, self.apart.offset + offset, 4 * count)
            packed = Buf(self.packed.base, self.packed.offset + at, width * count)
            item.src, item.dst = (packed, apart) if back else (apart, packed)
            item.scale, item.count, item.src_dtype, item.dst_dtype = scale, count, FLOAT32, to_type
            at += width * count

        def call() -> None:
            for begin in range(0, len(items), self.limit):
                n = min(self.limit, len(items) - begin)
                first = C.cast(C.byref(items, begin * C.sizeof(CopyItem)), C.POINTER(CopyItem))
                self.backend.call("device", "batched_copy_scale", self.space.stream, first, n)

        return call

    def loop(self) -> None:
        """The copies that hvd-core makes where a table has no batched copy."""
        at = 0
        for count, offset in zip(self.counts, self.offsets):
            apart = Buf(self.apart.base, self.apart.offset + offset, 4 * count)
            self.space.copy(Buf(self.packed.base, self.packed.offset + at, 4 * count), apart, 4 * count)
            at += 4 * count

    def one_copy(self) -> None:
        """As many bytes, in one piece."""
        self.space.copy(self.packed, self.apart, 4 * self.total)

    def seconds(self, call, repeat: int) -> float:
        """Per call, on the device's clock."""
        marks = (P(), P())
        for mark in marks:
            self.backend.call("device", "event_create", self.space.device, _abi.EVENT_TIMING, C.byref(mark))
        self.space.sync()
        self.backend.call("device", "event_record", marks[0], self.space.stream)
        for _ in range(repeat):
            call()
        self.backend.call("device", "event_record", marks[1], self.space.stream)
        self.space.sync()
        elapsed = C.c_int64(0)
        self.backend.call("device", "event_elapsed_ns", *marks, C.byref(elapsed))
        for mark in marks:
            self.backend.call("device", "event_destroy", mark)
        return max(elapsed.value, 1) / 1e9 / repeat


def main() -> None:
    kind, rounds, out, *quick = sys.argv[1:]
    target = resolve(os.environ["HOROVOD_BACKEND"])
    space = DeviceSpace(Backend(target.name, target.path, None), 0)
    packer = Packer(space, [64, 1000, 7, 5000] if quick else [math.prod(shape) for shape in resnet50()])
    # Each way with the bytes that it reads and writes for an element.
    ways = {"one copy": (packer.one_copy, 8), "loop of copies": (packer.loop, 8)}
    if packer.backend.has("device", "batched_copy_scale"):
        ways |= {
            "batch": (packer.batch(), 8),
            "batch, unpacking": (packer.batch(back=True), 8),
            "batch, scaled": (packer.batch(scale=0.5), 8),
            "batch, to bfloat16": (packer.batch(BFLOAT16, 2), 6),
            "batch, to float16, scaled": (packer.batch(FLOAT16, 2, 0.5), 6),
        }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(int(rounds) + 1):
        for way, (call, _) in ways.items():
            seconds = packer.seconds(call, 3 if quick else 50)
            if turn:
                times[way].append(seconds)
    moved = {way: width * packer.total for way, (_, width) in ways.items()}
    name = packer.name if kind == "cuda" else f"simulated device '{kind}'"
    write(out, {"device_name": name, "times": times, "moved": moved, "items": len(packer.counts)})
    os._exit(0)  # without waiting for the library's threads


if __name__ == "__main__":
    main()
