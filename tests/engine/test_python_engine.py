"""Backends written in Python under the engine: hvd.init(backend=MyBackend) on real ranks, good days, bad days, endings."""

import textwrap
from pathlib import Path

import pytest

from jobs import PRELUDE, start

HERE = str(Path(__file__).resolve().parent)


def program(backend, text):
    """A program whose ranks use that backend of star_backend.py."""
    head = PRELUDE.replace(
        "hvd.init()",
        f"sys.path.insert(0, {HERE!r})\nfrom star_backend import {backend}\nhvd.init(backend={backend})",
    )
    return head + textwrap.dedent(text)


def run_on(backend, ranks, folder, text, **options):
    path = Path(folder) / "ranks.py"
    path.write_text(program(backend, text))
    return run_file(ranks, path, **options)


def run_file(ranks, path, env=None, timeout=100, code=0):
    job = start(ranks, path, env)
    try:
        output, _ = job.communicate(timeout=timeout)
    finally:
        if job.returncode is None:
            job.terminate()
            job.communicate(timeout=15)
    assert job.returncode == code, f"exit code {job.returncode}, expected {code}; it printed:\n{output}"
    for sign in ("terminate called", "Fatal Python error", "Segmentation"):
        assert sign not in output, output
    return output


EVERYTHING = """
    names = "uint8 int8 uint16 int16 int32 int64 float16 float32 float64 bool uint32 uint64".split()
    for name in names:
        mine = (np.arange(6).reshape(3, 2) % 3 + rank).astype(name)
        all_ = [(np.arange(6).reshape(3, 2) % 3 + r).astype(name) for r in range(size)]
        ops = {hvd.Sum: sum(all_[1:], all_[0]), hvd.Min: np.minimum.reduce(all_), hvd.Max: np.maximum.reduce(all_)}
        ops[hvd.Product] = np.multiply.reduce(all_).astype(name)
        if name != "bool":
            total = sum(a.astype(np.float64) for a in all_) / size
            ops[hvd.Average] = (total if name.startswith("float") else np.trunc(total)).astype(name)
        for op, want in ops.items():
            got = hvd.allreduce(mine, op=op)
            assert got.dtype == mine.dtype
            assert np.allclose(got, want.astype(name), rtol=1e-3), (name, op, got, want)
            part = hvd.reducescatter(mine, op=op)
            begin = sum(3 // size + (r < 3 % size) for r in range(rank))
            assert np.allclose(part, want.astype(name)[begin : begin + len(part)], rtol=1e-3), (name, op)
        gathered = hvd.allgather(mine[: rank % 2 + 1])
        assert np.array_equal(gathered, np.concatenate([a[: r % 2 + 1] for r, a in enumerate(all_)])), name
        assert np.array_equal(hvd.broadcast(mine, size - 1), all_[-1]), name
        out, received = hvd.alltoall(np.repeat(mine[:1], size, 0), splits=[1] * size)
        assert np.array_equal(out, np.concatenate([a[:1] for a in all_])), name
    hvd.barrier()
    grouped = hvd.grouped_allreduce([np.full(n, rank + 1.0, np.float32) for n in (1, 0, 500)], op=hvd.Sum)
    assert all((g == size * (size + 1) / 2).all() for g in grouped)
    handles = [hvd.allreduce_async(np.full(3, i + rank), name=f"t{i}", op=hvd.Sum) for i in range(20)]
    for i, handle in enumerate(handles):
        assert hvd.synchronize(handle).tolist() == [size * i + size * (size - 1) // 2] * 3
    big = hvd.allreduce(np.full(300_000, 1.0, np.float32), op=hvd.Sum)
    assert (big == size).all()
    half = hvd.allreduce(np.array([1.0, 0.0, 2.0]) if rank else np.array([0.0, 1.0, 2.0]), op=hvd.Adasum)
    assert half[2] <= 2.0 * size
    print("served by", runtime.engine().backend_info()[-1]["name"])
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_everything_on_a_complete_backend(tmp_path, ranks):
    assert run_on("StarBackend", ranks, tmp_path, EVERYTHING).count("served by star") == ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_everything_on_the_least_backend(tmp_path, ranks):
    """Sums, broadcasts and gatherings of float32 only; the engine composes the rest."""
    assert run_on("PoorBackend", ranks, tmp_path, EVERYTHING).count("served by poor-star") == ranks


def test_a_registered_class_has_a_name(tmp_path):
    path = tmp_path / "named.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import os, sys
            sys.path.insert(0, {HERE!r})
            import numpy as np
            import hvd_core as hvd
            from hvd_core.backends import BackendNotInstalled, register_python_backend
            from star_backend import StarBackend
            try:
                hvd.init(backend="star")
            except BackendNotInstalled as error:
                assert "'star'" in str(error)
            else:
                raise AssertionError("it was not registered yet")
            register_python_backend(StarBackend)
            for again in range(3):
                hvd.init()
                assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]
                hvd.shutdown()
            """
        )
    )
    run_file(2, path, {"HOROVOD_BACKEND": "star"})


def test_never_chosen_automatically(tmp_path):
    path = tmp_path / "automatic.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {HERE!r})
            import hvd_core as hvd
            from hvd_core import runtime
            from hvd_core.backends import register_python_backend
            from star_backend import StarBackend
            register_python_backend(StarBackend)
            hvd.init()
            assert all(b["name"] != "star" for b in runtime.engine().backend_info())
            """
        )
    )
    run_file(2, path)


def test_an_exception_reaches_every_rank(tmp_path):
    text = """
        hvd.allreduce(np.ones(2), name="good")
        said = expect(hvd.HorovodInternalError, lambda: [hvd.allreduce(np.ones(2), name="bad") for _ in range(50)])
        print("heard", rank, said)
    """
    output = run_on("ChaosBackend", 3, tmp_path, text, env={"CHAOS": "raise", "CHAOS_AT": "5"})
    assert output.count("heard") == 3
    assert "a bug on purpose" in output.split("heard 1")[1].splitlines()[0], "on the rank that it happened to"


def test_a_hanging_method_and_a_dead_peer(tmp_path):
    text = """
        # The launcher ends who has not said within a second that it has heard; that may be too short here.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank == 1:
            handle = hvd.allreduce_async(np.ones(2), name="stuck")
            assert ChaosBackend.communicator.began.wait(40)
            tell("it hangs")
            print("heard", expect(hvd.HorovodInternalError, lambda: hvd.synchronize(handle)), flush=True)
            os._exit(0)
        hvd.allreduce_async(np.ones(2), name="stuck")
        await_told("it hangs")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "ranks.py"
    path.write_text(program("ChaosBackend", text))
    job = start(2, path, {"CHAOS": "hang"})
    output, _ = job.communicate(timeout=60)
    assert "heard" in output, output
    assert job.returncode != 0


@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "sys.exit(0)",
        "hvd.shutdown()",
        "hvd.shutdown(); hvd.init(backend=ChaosBackend); hvd.barrier()",
        "late()",
        "late(); time.sleep(0.1); sys.exit(0)",
        "import threading; threading.Thread(target=lambda: [hvd.barrier() for _ in range(2)], daemon=True).start()",
        "meet('first'); time.sleep(1); runtime.engine().abort('enough')",
    ],
)
def test_the_interpreter_ends_well(tmp_path, ending):
    """With work under way in Python, with and without shutdown()."""
    text = f"""
        def late():
            try:
                hvd.allreduce_async(np.ones(9), name="late")
            except hvd.HorovodInternalError:
                pass  # the other rank has ended the job

        hvd.allreduce(np.ones(3), name="first")
        {ending}
    """
    run_on("ChaosBackend", 2, tmp_path, text, env={"CHAOS": "sleep"})


def test_waiting_threads_do_not_hold_what_the_backend_needs(tmp_path):
    """Many threads that compute in Python and wait in the engine, while the backend computes in Python too."""
    text = """
        import threading
        def work(k):
            for i in range(20):
                got = hvd.allreduce(np.full(4, k + i), name=f"{k}.{i}", op=hvd.Sum)
                assert got.tolist() == [size * (k + i)] * 4
                sum(range(2000))
        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print("done", rank)
    """
    assert run_on("StarBackend", 2, tmp_path, text).count("done") == 2
