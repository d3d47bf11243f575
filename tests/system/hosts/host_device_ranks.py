"""One rank of test_hosts_devices.py: LIBRARY COUNT ROUNDS. Allreduces of a simulated device's memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "hvd_core/engine"))

import device_face
import hvd_core as hvd
from hvd_core._runtime import runtime


def main(library: str, count: int, rounds: int) -> None:
    hvd.init(process_sets="dynamic")
    device = device_face.Device("gcu", library, True)
    device.ordinal = hvd.local_rank()
    device.api.device_set(device.ordinal)
    device.stream = device.api.device_stream()  # on this device
    face = device_face.DeviceFace(device)
    if rounds:
        one = np.ones(count, np.float32)
        for _ in range(rounds):
            assert face.allreduce(one, name="x", op=hvd.Sum)[count - 1] == hvd.size()
    else:
        _right(face, count)
    if hvd.rank() == 0:
        for info in runtime.engine().backend_info():
            for x in info.get("served", ()):
                words = (x["collective"], x["dtype"], x["op"], x["served"], x["how"])
                print("served:", *words, flush=True)
    hvd.barrier()
    print("right", flush=True)


def _right(face: device_face.DeviceFace, count: int) -> None:
    """Whole numbers, and few of them, so that each type has the sums."""
    rank, size = hvd.rank(), hvd.size()

    def of(one: int, n: int, dtype: str) -> np.ndarray:
        return (np.arange(n) % 5 + one + 1).astype(dtype)

    for n in (count, count + 1, 2 * count + 77, 3):
        for dtype in ("float32", "float16", "int64", "int32"):
            mine, all_of_them = of(rank, n, dtype), [of(one, n, dtype) for one in range(size)]
            where = f"{dtype} x {n}"
            total = np.sum(all_of_them, axis=0, dtype=dtype)
            assert np.array_equal(face.allreduce(mine, name=f"sum {where}", op=hvd.Sum), total), where
            assert np.array_equal(face.allreduce_(mine.copy(), name=f"own {where}", op=hvd.Sum), total), where
            assert np.array_equal(
                face.allreduce(mine, name=f"max {where}", op=hvd.Max), of(size - 1, n, dtype)
            ), where
            factors = {"prescale_factor": 2.0, "postscale_factor": 0.5}
            scaled = face.allreduce(mine, name=f"scaled {where}", op=hvd.Sum, **factors)
            assert np.array_equal(scaled, total), where
            average = face.allreduce(mine, name=f"average {where}")
            assert np.allclose(average, np.mean(all_of_them, axis=0).astype(dtype), rtol=1e-2), where
    parts = [1, 0, count, 333]
    sums = face.grouped_allreduce([of(rank, n, "float32") for n in parts], name="group", op=hvd.Sum)
    for n, got in zip(parts, sums):
        assert np.array_equal(got, np.sum([of(one, n, "float32") for one in range(size)], axis=0)), n
    # The same bits everywhere, although sums of these depend on the order.
    chance = np.random.default_rng(rank).standard_normal(count).astype(np.float32)
    rows = hvd.allgather(face.allreduce(chance, op=hvd.Sum, name="noise").reshape(1, -1), name="rows")
    assert all(np.array_equal(row, rows[0]) for row in rows)
    # A set with one rank on each host has one level, and a set of one host too.
    for ranks in ([0, size - 1], [0, 1]):
        chosen = hvd.add_process_set(ranks)
        if rank in ranks:
            got = face.allreduce(of(rank, count, "float32"), op=hvd.Sum, name="in a set", process_set=chosen)
            assert np.array_equal(got, np.sum([of(one, count, "float32") for one in ranks], axis=0)), ranks


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
