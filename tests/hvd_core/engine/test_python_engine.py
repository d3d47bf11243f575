"""Backends written in Python under the engine: hvd.init(backend=MyBackend) on real ranks, good days, bad days, endings."""

import os
import signal
import threading

import numpy as np
import pytest

import ending_ranks
import hvd_core as hvd
import star_backend
from harness import finish, launch, run_on_ranks, run_to_the_end
from harness.rank import await_told, expect, ignore_the_launcher, tell
from hvd_core._runtime import runtime
from hvd_core.backends import BackendNotInstalled, register_python_backend
from star_backend import ChaosBackend, StarBackend


def _everything(backend):
    """Every operation, type and reduction; returns the name of the backend that served them."""
    hvd.init(backend=getattr(star_backend, backend))
    rank, size = hvd.rank(), hvd.size()
    names = [
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "bool",
        "uint32",
        "uint64",
    ]
    for name in names:
        mine = (np.arange(6).reshape(3, 2) % 3 + rank).astype(name)
        all_ = [(np.arange(6).reshape(3, 2) % 3 + r).astype(name) for r in range(size)]
        ops = {
            hvd.Sum: sum(all_[1:], all_[0]),
            hvd.Min: np.minimum.reduce(all_),
            hvd.Max: np.maximum.reduce(all_),
        }
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
        out, _ = hvd.alltoall(np.repeat(mine[:1], size, 0), splits=[1] * size)
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
    return runtime.engine().backend_info()[-1]["name"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_everything_on_a_complete_backend(ranks):
    assert run_on_ranks(ranks, _everything, "StarBackend", init=None).results == ["star"] * ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_everything_on_the_least_backend(ranks):
    """Sums, broadcasts and gatherings of float32 only; the engine composes the rest."""
    assert run_on_ranks(ranks, _everything, "MinimalBackend", init=None).results == ["minimal-star"] * ranks


def _registers_and_names_it():
    expect(BackendNotInstalled, lambda: hvd.init(backend="star"), "'star'")
    register_python_backend(StarBackend)
    for _ in range(3):
        hvd.init()
        assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]
        hvd.shutdown()


# A registered class stays registered in its process, so these two tests have processes of their own.
def test_a_registered_class_has_a_name(tmp_path):
    run_to_the_end(2, _registers_and_names_it, folder=tmp_path, env={"HOROVOD_BACKEND": "star"}, init=None)


def _registers_and_names_nothing():
    register_python_backend(StarBackend)
    hvd.init()
    assert all(b["name"] != "star" for b in runtime.engine().backend_info())


def test_never_chosen_automatically(tmp_path):
    run_to_the_end(2, _registers_and_names_nothing, folder=tmp_path, init=None)


def _repeats_an_operation_that_fails():
    hvd.init(backend=ChaosBackend)
    hvd.allreduce(np.ones(2), name="good")
    call = lambda: [hvd.allreduce(np.ones(2), name="bad") for _ in range(50)]  # noqa: E731
    print("heard", hvd.rank(), expect(hvd.HorovodInternalError, call))


def test_an_exception_reaches_every_rank(tmp_path):
    env = {"CHAOS": "raise", "CHAOS_AT": "5"}
    output = run_to_the_end(3, _repeats_an_operation_that_fails, folder=tmp_path, env=env, init=None)
    assert no_crash(output).count("heard") == 3
    assert "a bug on purpose" in output.split("heard 1")[1].splitlines()[0], "on the rank that it happened to"


def no_crash(output):
    """The output, in which the interpreter reports no crash."""
    for sign in ("terminate called", "Fatal Python error", "Segmentation"):
        assert sign not in output, output
    return output


def _rank_0_dies_while_both_hang():
    hvd.init(backend=ChaosBackend)
    ignore_the_launcher()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(np.ones(2), name="stuck")
        assert ChaosBackend.communicator.began.wait(40)
        tell("it hangs")
        print("heard", expect(hvd.HorovodInternalError, lambda: hvd.synchronize(handle)), flush=True)
        os._exit(0)
    hvd.allreduce_async(np.ones(2), name="stuck")
    await_told("it hangs")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_hanging_method_and_a_dead_peer(tmp_path):
    job = launch(2, _rank_0_dies_while_both_hang, folder=tmp_path, env={"CHAOS": "hang"}, init=None)
    output, _ = job.communicate(timeout=60)
    assert "heard" in output, output
    assert job.returncode != 0


@pytest.mark.parametrize("ending", ending_ranks.ENDINGS)
def test_the_interpreter_ends_well(tmp_path, ending):
    """With work under way in Python, with and without shutdown()."""
    job = launch(2, ending_ranks.end_by, ending, folder=tmp_path, env={"CHAOS": "sleep"}, init=None)
    no_crash(finish(job, 100))


@pytest.mark.ranks(2, init=None)
def test_waiting_threads_do_not_hold_what_the_backend_needs():
    """Many threads that compute in Python and wait in the engine, while the backend computes in Python too."""
    hvd.init(backend=StarBackend)
    size, wrong = hvd.size(), []

    def work(k):
        for i in range(20):
            got = hvd.allreduce(np.full(4, k + i), name=f"{k}.{i}", op=hvd.Sum)
            if got.tolist() != [size * (k + i)] * 4:
                wrong.append((k, i, got))
            sum(range(2000))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
