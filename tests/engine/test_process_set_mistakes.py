"""Process sets at bad moments and with mistakes of one rank: every rank hears of it, and nothing waits for ever."""

from jobs import run

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


def test_submissions_that_cross_the_end_of_their_set_end(tmp_path):
    """One thread submits while another ends the set: what comes too late to be agreed on fails."""
    run(
        2,
        tmp_path,
        """
        import threading
        engine = runtime.engine()
        for _ in range(60):
            ps = hvd.add_process_set([0])
            number, handles, arrays = ps.process_set_id, [], []
            started = threading.Event()
            def submit():
                started.set()
                try:
                    for i in range(5000):
                        arrays.append(np.ones(1))
                        handles.append(engine.allreduce(arrays[-1], arrays[-1], f"x{i}", 0, 1.0, 1.0, number))
                except ValueError as error:
                    assert "has not been registered" in str(error)
            if rank == 0:
                thread = threading.Thread(target=submit)
                thread.start()
                started.wait()
            hvd.remove_process_set(ps)
            if rank == 0:
                thread.join()
                end = time.monotonic() + 10
                for handle in handles:
                    while not engine.poll(handle):
                        assert time.monotonic() < end, "a submission neither completes nor fails"
                    engine.release(handle)
        hvd.barrier()
        """,
        env=DYNAMIC,
        timeout=90,
    )
