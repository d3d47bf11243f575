"""Arrays of hvd.empty(): reduced in place between the ranks' memory, like ordinary ones in every other way."""

import gc
import itertools
import os
import resource
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
from harness import launch
from harness.rank import await_told, expect, tell
from hvd_core import HorovodInternalError
from hvd_core._runtime.current_job import engine

SIZE = 40_000  # elements; more than the ranks exchange in one step


def in_place() -> int:
    """How many allreduces this process has carried out in windows."""
    return int(engine().backend_fact("shm", "in_place"))


def windows() -> int:
    """How many parts of windows this process maps."""
    return sum("hvd-window" in line for line in Path("/proc/self/maps").read_text().splitlines())


def filled(array, seed):
    random = np.random.default_rng(seed)
    if array.dtype.kind == "f":
        array[:] = random.normal(size=array.shape)
    else:
        array[:] = random.integers(0, 100, size=array.shape)
    return array


@pytest.mark.ranks(2, 3, 4)
def test_results_are_those_of_ordinary_arrays():
    rank = hvd.rank()
    for dtype in ("float32", "float64", "float16", "int8", "int64"):
        ours, plain = hvd.empty(SIZE + 7, dtype), np.empty(SIZE + 7, dtype)
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max):
            filled(ours, rank)
            plain[:] = ours
            done = in_place()
            assert hvd.allreduce_(ours, op=op) is ours
            assert in_place() == done + 1
            hvd.allreduce_(plain, op=op)
            assert in_place() == done + 1
            assert ours.tobytes() == plain.tobytes(), (dtype, op)
    # Scaled; with a result of its own; parts at odd places; small ones; other operations.
    ours = hvd.empty((3, SIZE), np.float32)
    plain = filled(ours, rank).copy()
    assert hvd.allreduce(ours, op=hvd.Sum).tobytes() == hvd.allreduce(plain, op=hvd.Sum).tobytes()
    for part in (np.s_[1, 3:-5], np.s_[2, 100:20_001], np.s_[0, :3]):
        hvd.allreduce_(ours[part], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        hvd.allreduce_(plain[part], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert ours.tobytes() == plain.tobytes()
    np.testing.assert_array_equal(hvd.broadcast(ours, 0), hvd.broadcast(plain, 0))
    np.testing.assert_array_equal(hvd.allgather(ours), hvd.allgather(plain))


@pytest.mark.ranks(2, 3)
def test_batches_of_arrays_in_one_window():
    rank = hvd.rank()
    sizes = [1, 5, 6000, 64, 31, 3001, 20_000, 16, 7, 900]
    bounds = np.cumsum([0, *sizes])
    ours = hvd.empty(int(bounds[-1]), np.float32)
    plain = filled(ours, rank).copy()
    order = [slice(a, b) for a, b in itertools.pairwise(bounds)][::-1]
    done = in_place()
    hvd.grouped_allreduce_([ours[part] for part in order], op=hvd.Average)
    assert in_place() == done + 1
    hvd.grouped_allreduce_([plain[part] for part in order], op=hvd.Average)
    assert ours.tobytes() == plain.tobytes()
    # One by one and not waited for: the engine makes batches of them.
    filled(ours, rank + 10)
    plain[:] = ours
    for array in (ours, plain):
        handles = [hvd.allreduce_async_(array[part], name=f"part{part.start}", op=hvd.Sum) for part in order]
        for handle in handles:
            hvd.synchronize(handle)
    assert ours.tobytes() == plain.tobytes()


@pytest.mark.ranks(2, 3)
def test_ranks_may_pass_other_memory_than_each_other():
    rank = hvd.rank()
    first, second = hvd.empty(2 * SIZE, np.float32), hvd.empty(2 * SIZE, np.float32)
    plain = np.empty(2 * SIZE, np.float32)
    everyone = [filled(np.empty(SIZE, np.float32), r) for r in range(hvd.size())]
    expected = hvd.allreduce(everyone[rank], op=hvd.Sum)
    choices = [
        (first[:SIZE], plain[:SIZE], 0),  # in a window on one rank, and not on the others
        (plain[:SIZE], first[:SIZE], 0),
        (first[:SIZE], first[11 : SIZE + 11], 1),  # at other places of one window
        (first[:SIZE], second[3 : SIZE + 3], 1),  # in other windows
    ]
    for mine, theirs, count in choices:
        array = mine if rank == 0 else theirs
        array[:] = everyone[rank]
        done = in_place()
        hvd.allreduce_(array, name="the same", op=hvd.Sum)
        assert in_place() == done + count
        assert array.tobytes() == expected.tobytes()
    # Ranks that disagree hear it, and go on.
    text = expect(HorovodInternalError, lambda: hvd.allreduce_(first[: SIZE + rank], name="odd"))
    assert "Mismatched ALLREDUCE tensor shapes" in text
    text = expect(HorovodInternalError, lambda: hvd.empty(5 + rank))
    assert "Mismatched CREATE_WINDOW tensor shapes" in text
    expect(ValueError, lambda: hvd.empty(4, "complex64"), "moves no arrays of type complex64")
    first[:] = 1
    assert (hvd.allreduce_(first, op=hvd.Sum) == hvd.size()).all()


@pytest.mark.ranks(3, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def test_process_sets_have_windows_of_their_own():
    pair = hvd.add_process_set([0, 2])
    if hvd.rank() != 1:
        ours = hvd.empty(SIZE, np.float32, process_set=pair)
        ours[:] = hvd.rank()
        done = in_place()
        assert (hvd.allreduce_(ours, op=hvd.Sum, process_set=pair) == 2).all()
        assert in_place() == done + 1
    else:
        ours = np.ones(SIZE, np.float32)
    # All ranks, and one of them without a window; then without the set.
    assert (hvd.allreduce_(ours, op=hvd.Sum) == 5).all()
    hvd.remove_process_set(pair)
    assert (hvd.allreduce_(ours, op=hvd.Sum) == 15).all()
    # A rank that has joined takes part in the making of a window.
    if hvd.rank() == 1:
        hvd.join()
    else:
        ours = hvd.empty(SIZE, np.float32)
        ours[:] = hvd.rank()
        assert (hvd.allreduce_(ours, op=hvd.Sum) == 2).all()
        hvd.join()


@pytest.mark.ranks(2)
def test_memory_is_given_back():
    before = windows()
    kept = hvd.empty(1 << 20, np.uint8)
    for _ in range(5):
        array = hvd.empty(1 << 20, np.uint8)
        array[:] = 1
        del array
        gc.collect()
    # The parts of both ranks in both windows lie beside each other, or not.
    assert before < windows() <= before + 4
    kept[:] = hvd.rank()
    hvd.shutdown()
    assert windows() == before + 1  # of this rank alone
    kept[:] += 7
    hvd.init()
    done = in_place()
    assert (hvd.allreduce_(kept, op=hvd.Sum) == 15).all()
    assert in_place() == done  # an ordinary array now
    del kept
    gc.collect()
    assert windows() == before


@pytest.mark.ranks(2)
def test_a_rank_without_memory_makes_all_take_ordinary_arrays():
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if hvd.rank() == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), limits[1]))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            array = hvd.empty(64 << 20, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    text = str(caught[0].message)
    assert "the shared memory could not be made" in text, text
    assert ("NOMEM" if hvd.rank() == 1 else "another rank could not make it") in text
    array[:SIZE] = 1
    done = in_place()
    assert (hvd.allreduce_(array[:SIZE], op=hvd.Sum) == 2).all()
    assert in_place() == done
    ours = hvd.empty(SIZE, np.float32)
    ours[:] = 1
    assert (hvd.allreduce_(ours, op=hvd.Sum) == 2).all() and in_place() == done + 1


@pytest.mark.ranks(1, 2)
def test_an_array_that_no_memory_holds_is_an_error_on_all_ranks():
    for size in (1 << 46, 1 << 54):
        text = expect(HorovodInternalError, lambda size=size: hvd.empty(size, np.uint8))
        assert f"has no memory for an array of {size} bytes" in text
    expect(ValueError, lambda: hvd.empty(1 << 61, np.float64), "an address space holds")
    expect(ValueError, lambda: hvd.empty(1 << 70), "is not the shape of an array")
    # The job goes on, and so do windows.
    ours = hvd.empty(SIZE, np.float32)
    ours[:] = 1
    done = in_place()
    assert (hvd.allreduce_(ours, op=hvd.Sum) == hvd.size()).all()
    assert in_place() == done + (hvd.size() > 1)


@pytest.mark.ranks(2)
def test_a_rank_without_any_memory_makes_the_call_fail_on_all_ranks():
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if hvd.rank() == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), limits[1]))
    try:
        # More than what ends meanwhile frees.
        text = expect(HorovodInternalError, lambda: hvd.empty(1 << 30, np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert text.startswith(("another rank", "this rank")[hvd.rank()]), text
    assert (hvd.allreduce_(np.ones(4), op=hvd.Sum) == 2).all()


@pytest.mark.ranks(2)
def test_a_forked_child_does_not_have_the_memory():
    array = hvd.empty(SIZE, np.float32)
    array[:] = 1
    child = os.fork()
    if child == 0:
        os._exit(0 if windows() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (hvd.allreduce_(array, op=hvd.Sum) == 2).all()


@pytest.mark.ranks(1)
def test_one_rank_has_an_ordinary_array():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = hvd.empty((2, 3), np.int16)
    assert array.shape == (2, 3) and array.dtype == np.int16 and windows() == 0


def killed_in_windows():
    # The launcher ends the survivors, which print their results first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    array = hvd.empty(4 << 20, np.float32)
    array[:] = 1
    hvd.allreduce_(array, op=hvd.Sum)
    tell(f"works {hvd.rank()}")
    if hvd.rank() == 2:
        await_told("works 0")
        await_told("works 1")
        hvd.allreduce_async_(array, op=hvd.Min)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            hvd.allreduce_(array, op=hvd.Min)
    except HorovodInternalError as error:
        array[:] = 5  # at once: the other survivor may be in its slice still, and must not write here
        tell(f"left {hvd.rank()}")
        await_told(f"left {1 - hvd.rank()}")
        print("the survivor has its memory:", array.sum() == 5 * array.size, error)


def test_ranks_that_are_killed_in_windows(tmp_path):
    job = launch(3, killed_in_windows, folder=tmp_path)
    output, _ = job.communicate(timeout=100)
    assert job.returncode != 0
    assert output.count("the survivor has its memory: True") == 2, output


@pytest.mark.ranks(2, env={"HOROVOD_BACKEND": "tcp"})
def test_a_backend_without_windows():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        array = hvd.empty(SIZE, np.float32)
    assert "the backend tcp has no windows" in str(caught[0].message)
    array[:] = 1
    assert (hvd.allreduce_(array, op=hvd.Sum) == 2).all()
