"""Ranks may differ without harm in the order of submissions, in waits, and in waits for each other by other means."""

import random
import threading
import time

import numpy as np
import pytest

import hvd_core as hvd
from harness import run_on_ranks
from harness.rank import await_told, expect, tell


@pytest.mark.ranks(3)
def test_submission_in_any_order():
    rank = hvd.rank()
    order = random.Random(rank)
    names = [f"t{i}" for i in range(40)]
    for _step in range(25):
        order.shuffle(names)
        handles = {n: hvd.allreduce_async(np.full(3, float(n[1:])) + rank, name=n, op=hvd.Sum) for n in names}
        order.shuffle(names)
        for n in names:
            expected = 3 * float(n[1:]) + 3
            assert hvd.synchronize(handles[n]).tolist() == [expected] * 3


@pytest.mark.ranks(2)
def test_wait_before_the_rest_of_a_known_batch_is_submitted():
    # Ten equal steps make {a, b} a known batch; then each rank waits for one member before it submits the other.
    rank = hvd.rank()
    one, two = ("a", "b") if rank == 0 else ("b", "a")
    for _step in range(10):
        hs = [hvd.allreduce_async(np.ones(2), name=n, op=hvd.Sum) for n in ("a", "b")]
        for h in hs:
            assert hvd.synchronize(h).tolist() == [2, 2]
    for _step in range(10):
        for n in ("a", "b"):
            assert hvd.allreduce(np.ones(2), name=n, op=hvd.Sum).tolist() == [2, 2]
        # Back to both at once, in different orders.
        hs = [hvd.allreduce_async(np.ones(2), name=n, op=hvd.Sum) for n in (one, two)]
        for h in hs:
            assert hvd.synchronize(h).tolist() == [2, 2]


@pytest.mark.ranks(2)
def test_a_rank_that_waits_by_other_means():
    # Rank 1 submits b only after it has seen, outside of the engine, that rank 0's a is through.
    rank = hvd.rank()
    for step in range(20):
        a = hvd.allreduce_async(np.ones(2), name="a")
        if step < 10 or rank == 0:
            b = hvd.allreduce_async(np.ones(2), name="b")
        if step >= 10 and rank == 0:
            hvd.synchronize(a)
            tell(f"{step}")
        elif step >= 10:
            await_told(f"{step}", 30)  # else rank 0's operation was held back
            b = hvd.allreduce_async(np.ones(2), name="b")
        for h in (b,) if step >= 10 and rank == 0 else (a, b):
            hvd.synchronize(h)


@pytest.mark.ranks(2)
def test_polling_makes_progress():
    for step in range(30):
        a = hvd.allreduce_async(np.ones(2), name="a")
        b = hvd.allreduce_async(np.ones(2), name="b") if step < 10 else None
        deadline = time.monotonic() + 30
        while not hvd.poll(a):
            assert time.monotonic() < deadline
        if b is None:
            b = hvd.allreduce_async(np.ones(2), name="b")
        hvd.synchronize(a), hvd.synchronize(b)
    expect(ValueError, lambda: hvd.poll(a), "was not created or has been cleared")


@pytest.mark.ranks(2)
def test_changing_shapes_and_types_under_one_name():
    for step in range(60):
        hs = []
        for n in range(5):
            shape = (n + 1, 1 + (step // 7 if n == step % 5 else 0))
            dtype = "f4" if step % 11 else "i4"
            hs.append(hvd.allreduce_async(np.ones(shape, dtype), name=f"n{n}", op=hvd.Sum))
        for h in hs:
            assert (hvd.synchronize(h) == 2).all()


def _steps():
    rank = hvd.rank()
    for _ in range(12):
        hs = [hvd.allreduce_async(np.full(1000, rank + i), name=f"n{i}", op=hvd.Sum) for i in range(30)]
        for i, h in enumerate(hs):
            assert (hvd.synchronize(h) == 2 * i + 1).all()


@pytest.mark.parametrize(
    "setting",
    [
        "HOROVOD_FUSION_THRESHOLD=0",
        "HOROVOD_FUSION_THRESHOLD=20000",
        "HOROVOD_CACHE_CAPACITY=0",
        "HOROVOD_CACHE_CAPACITY=7",
        "HOROVOD_CYCLE_TIME=0",
        "HOROVOD_CYCLE_TIME=50",
        "HOROVOD_CONTROL_TRANSPORT=tcp",
    ],
)
def test_settings(setting):
    run_on_ranks(2, _steps, env=dict([setting.split("=")]))


@pytest.mark.ranks(2, env={"HOROVOD_CACHE_CAPACITY": "many"}, init=None)
def test_a_setting_that_is_no_number():
    expect(ValueError, hvd.init, "HOROVOD_CACHE_CAPACITY='many' is not a whole number")


@pytest.mark.ranks(2)
def test_threads_submit_at_once():
    rank = hvd.rank()
    wrong = []

    def work(k):
        for step in range(100):
            got = hvd.allreduce(np.full(8, k + rank), name=f"thread{k}", op=hvd.Sum)
            if (got != 2 * k + 1).any():
                wrong.append((k, step, got))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]
