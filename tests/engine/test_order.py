"""What may differ between ranks without harm: the order of submissions, waits, and who waits for whom by other means."""

import pytest

from jobs import run


def test_submission_in_any_order(tmp_path):
    run(
        3,
        tmp_path,
        """
        import random
        order = random.Random(rank)
        names = [f"t{i}" for i in range(40)]
        for step in range(25):
            order.shuffle(names)
            handles = {n: hvd.allreduce_async(np.full(3, float(n[1:])) + rank, name=n, op=hvd.Sum) for n in names}
            order.shuffle(names)
            for n in names:
                expected = 3 * float(n[1:]) + 3
                assert hvd.synchronize(handles[n]).tolist() == [expected] * 3
        """,
    )


def test_wait_before_the_rest_of_a_known_batch_is_submitted(tmp_path):
    # Ten equal steps make {a, b} a known batch; then each rank waits for one member before it submits the other.
    run(
        2,
        tmp_path,
        """
        one, two = ("a", "b") if rank == 0 else ("b", "a")
        for step in range(10):
            hs = [hvd.allreduce_async(np.ones(2), name=n, op=hvd.Sum) for n in ("a", "b")]
            for h in hs:
                assert hvd.synchronize(h).tolist() == [2, 2]
        for step in range(10):
            for n in ("a", "b"):
                assert hvd.allreduce(np.ones(2), name=n, op=hvd.Sum).tolist() == [2, 2]
            # Back to both at once, in different orders.
            hs = [hvd.allreduce_async(np.ones(2), name=n, op=hvd.Sum) for n in (one, two)]
            for h in hs:
                assert hvd.synchronize(h).tolist() == [2, 2]
        """,
    )


def test_a_rank_that_waits_by_other_means(tmp_path):
    # Rank 1 submits b only after it has seen, outside of the engine, that rank 0's a is through.
    run(
        2,
        tmp_path,
        f"""
        flag = {str(tmp_path / "flag")!r}
        for step in range(20):
            a = hvd.allreduce_async(np.ones(2), name="a")
            if step < 10 or rank == 0:
                b = hvd.allreduce_async(np.ones(2), name="b")
            if step >= 10 and rank == 0:
                hvd.synchronize(a)
                open(flag + str(step), "w").close()
            elif step >= 10:
                deadline = time.monotonic() + 30
                while not os.path.exists(flag + str(step)):
                    assert time.monotonic() < deadline, "rank 0's operation was held back"
                    time.sleep(0.001)
                b = hvd.allreduce_async(np.ones(2), name="b")
            for h in (b,) if step >= 10 and rank == 0 else (a, b):
                hvd.synchronize(h)
        """,
    )


def test_polling_makes_progress(tmp_path):
    run(
        2,
        tmp_path,
        """
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
        """,
    )


def test_changing_shapes_and_types_under_one_name(tmp_path):
    run(
        2,
        tmp_path,
        """
        for step in range(60):
            hs = []
            for n in range(5):
                shape = (n + 1, 1 + (step // 7 if n == step % 5 else 0))
                dtype = "f4" if step % 11 else "i4"
                hs.append(hvd.allreduce_async(np.ones(shape, dtype), name=f"n{n}", op=hvd.Sum))
            for h in hs:
                assert (hvd.synchronize(h) == 2).all()
        """,
    )


@pytest.mark.timeout(400)  # eight jobs
def test_settings(tmp_path):
    program = """
        for step in range(12):
            hs = [hvd.allreduce_async(np.full(1000, rank + i), name=f"n{i}", op=hvd.Sum) for i in range(30)]
            for i, h in enumerate(hs):
                assert (hvd.synchronize(h) == 2 * i + 1).all()
        """
    for env in (
        {"HOROVOD_FUSION_THRESHOLD": "0"},
        {"HOROVOD_FUSION_THRESHOLD": "20000"},
        {"HOROVOD_CACHE_CAPACITY": "0"},
        {"HOROVOD_CACHE_CAPACITY": "7"},
        {"HOROVOD_CYCLE_TIME": "0"},
        {"HOROVOD_CYCLE_TIME": "50"},
        {"HOROVOD_CONTROL_TRANSPORT": "tcp"},
    ):
        run(2, tmp_path, program, env)
    text = run(2, tmp_path, program, {"HOROVOD_CACHE_CAPACITY": "many"}, code=1)
    assert "HOROVOD_CACHE_CAPACITY='many' is not a whole number" in text


def test_threads_submit_at_once(tmp_path):
    run(
        2,
        tmp_path,
        """
        import threading
        wrong = []
        def work(k):
            for step in range(100):
                got = hvd.allreduce(np.full(8, k + rank), name=f"thread{k}", op=hvd.Sum)
                if (got != 2 * k + 1).any():
                    wrong.append((k, step, got))
        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not wrong, wrong[:3]
        """,
    )
