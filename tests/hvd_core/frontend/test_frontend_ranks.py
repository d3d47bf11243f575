"""The table for front ends without Python, on one to three ranks: every operation through it, compared with NumPy."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
import native_table as nt
from frontend_job import JOB, close, data, everyone, table, ways
from harness.rank import await_told, needs, tell
from native_table import OK

pytestmark = pytest.mark.ranks(1, 2, 3, init_options=JOB)

REDUCED = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "uint32",
    "uint64",
)


def names_of_threads():
    found = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            found.add(path.read_text().strip())
    return found


def test_no_thread_before_the_first_submit():
    names = names_of_threads()
    assert "hvd-engine" in names and "hvd-done" not in names, names
    table().run(nt.BARRIER).ok()
    assert "hvd-done" not in names_of_threads()


def test_who_am_i():
    raw = table().raw
    assert (raw.version, raw.rank(), raw.size()) == (1, hvd.rank(), hvd.size())
    assert (raw.local_rank(), raw.local_size()) == (hvd.local_rank(), hvd.local_size())
    assert (raw.process_set_rank(0), raw.process_set_size(0)) == (hvd.rank(), hvd.size())
    assert (raw.process_set_rank(99), raw.process_set_size(99), raw.scattered_rows(5, 99)) == (-3, -3, -3)
    assert sum(len(np.arange(7)[r :: hvd.size()]) for r in range(hvd.size())) == 7
    rows = raw.scattered_rows(7, 0)
    assert rows == 7 // hvd.size() + (hvd.rank() < 7 % hvd.size())
    assert (raw.serves(None), raw.serves(b"cpu"), raw.serves(b"nothing")) == (1, 1, 0)


def test_allreduce_every_type():
    folds = {nt.SUM: np.sum, nt.PROD: np.prod, nt.MIN: np.min, nt.MAX: np.max, nt.AVG: np.mean}
    for seed, (dtype, op, (verb, options)) in enumerate(itertools.product(REDUCED, folds, ways())):
        x = data(hvd.rank(), (5, 3), dtype, seed)
        y = np.empty_like(x)
        p = table().call(verb, nt.ALLREDUCE, [x], [y], "every", reduce_op=op, **options).ok()
        assert (p.times, p.outputs) == (1, [])
        expected = folds[op](everyone(x.shape, dtype, seed), axis=0)
        if op == nt.AVG and np.dtype(dtype).kind in "iu":
            expected = np.trunc(expected)
        close(y, expected)


def test_factors_in_place_and_odd_shapes():
    for shape in ((), (0,), (0, 3), (1,), (100_003,)):
        x = data(hvd.rank(), shape, "float32")
        table().submit(nt.ALLREDUCE, [x], [x], prescale=0.5, postscale=3.0).ok()
        close(x, everyone(shape, "float32").sum(axis=0) * 1.5)


def test_adasum_is_the_faces():
    x = data(hvd.rank(), (33,), "float64") * (1 + hvd.rank())
    y = np.empty_like(x)
    for verb, options in ways():
        table().call(verb, nt.ALLREDUCE, [x], [y], "ada", reduce_op=nt.ADASUM, **options).ok()
        np.testing.assert_array_equal(y, hvd.allreduce(x, op=hvd.Adasum, name="ada"))
    if hvd.size() == 2:
        a, b = (data(r, (33,), "float64") * (1 + r) for r in range(2))
        expected = (1 - a @ b / (2 * (a @ a))) * a + (1 - a @ b / (2 * (b @ b))) * b
        np.testing.assert_allclose(y, expected)


def test_allgather():
    for dtype, (verb, options) in itertools.product((*REDUCED, "bool"), ways()):
        x = data(hvd.rank(), (hvd.rank() + 1, 2), dtype)
        p = table().call(verb, nt.ALLGATHER, [x], name="g", **options).ok()
        close(
            p.outputs[0],
            np.concatenate([data(r, (r + 1, 2), dtype) for r in range(hvd.size())]).astype(np.float64),
        )
    empty = data(hvd.rank(), (0, 2), "int32")
    assert table().submit(nt.ALLGATHER, [empty]).ok().outputs[0].shape == (0, 2)


def test_broadcast():
    for root, dtype, (verb, options) in itertools.product(
        range(hvd.size()), ("float16", "int64", "bool"), ways()
    ):
        x = data(hvd.rank(), (4,), dtype, root)
        y = np.empty_like(x)
        table().call(verb, nt.BROADCAST, [x], [y], "b", root=root, **options).ok()
        np.testing.assert_array_equal(y, data(root, (4,), dtype, root))


def test_alltoall():
    splits = [(hvd.rank() + r) % 3 for r in range(hvd.size())]
    for verb, options in ways():
        x = data(hvd.rank(), (sum(splits) + 1, 2), "float32")  # no rank gets the last row
        p = table().call(verb, nt.ALLTOALL, [x], name="t", splits=splits, **options).ok()
        parts, received = [], []
        for r in range(hvd.size()):
            theirs = [(r + k) % 3 for k in range(hvd.size())]
            begin = sum(theirs[: hvd.rank()])
            parts.append(data(r, (sum(theirs) + 1, 2), "float32")[begin : begin + theirs[hvd.rank()]])
            received.append(theirs[hvd.rank()])
        close(p.outputs[0], np.concatenate(parts).astype(np.float64))
        assert p.received == received
        equal = data(hvd.rank(), (2 * hvd.size(),), "int32")
        p = table().call(verb, nt.ALLTOALL, [equal], **options).ok()
        close(
            p.outputs[0],
            np.concatenate(
                [
                    data(r, (2 * hvd.size(),), "int32")[2 * hvd.rank() : 2 * hvd.rank() + 2]
                    for r in range(hvd.size())
                ]
            ),
        )


def test_reducescatter_with_and_without_memory():
    rows = 2 * hvd.size() + 1
    begin = sum(rows // hvd.size() + (r < rows % hvd.size()) for r in range(hvd.rank()))
    mine = table().raw.scattered_rows(rows, 0)
    for seed, (dtype, op, (verb, options)) in enumerate(
        itertools.product(("float32", "int64", "float16"), (nt.SUM, nt.AVG, nt.MAX), ways())
    ):
        x = data(hvd.rank(), (rows, 3), dtype, seed)
        fold = {nt.SUM: np.sum, nt.AVG: np.mean, nt.MAX: np.max}[op]
        expected = fold(everyone((rows, 3), dtype, seed), axis=0)[begin : begin + mine]
        if op == nt.AVG and dtype == "int64":
            expected = np.trunc(expected)
        y = np.empty((mine, 3), dtype)
        assert table().call(verb, nt.REDUCESCATTER, [x], [y], "s", reduce_op=op, **options).ok().outputs == []
        close(y, expected)
        # The engine may allocate on one rank and not on another.
        if hvd.rank() % 2 == 0:
            close(
                table().call(verb, nt.REDUCESCATTER, [x], None, "s", reduce_op=op, **options).ok().outputs[0],
                expected,
            )
        else:
            table().call(verb, nt.REDUCESCATTER, [x], [y], "s", reduce_op=op, **options).ok()
            close(y, expected)


def test_groups_of_several_types():
    types = ("float32", "int32", "float64", "float32")
    shapes = ((3,), (2, 2), (), (0, 4))
    for verb, options in ways():
        xs = [data(hvd.rank(), shape, dtype) for shape, dtype in zip(shapes, types)]
        ys = [np.empty_like(x) for x in xs]
        table().call(verb, nt.ALLREDUCE, xs, ys, "group", **options).ok()
        for y, shape, dtype in zip(ys, shapes, types):
            close(y, everyone(shape, dtype).sum(axis=0))
        table().call(verb, nt.BROADCAST, xs, ys, "group", root=hvd.size() - 1, **options).ok()
        for y, shape, dtype in zip(ys, shapes, types):
            np.testing.assert_array_equal(y, data(hvd.size() - 1, shape, dtype))
        xs = [data(hvd.rank(), (hvd.rank() + 1,), "float32"), data(hvd.rank(), (2, 2), "int32")]
        p = table().call(verb, nt.ALLGATHER, xs, name="group", **options).ok()
        close(p.outputs[0], np.concatenate([data(r, (r + 1,), "float32") for r in range(hvd.size())]))
        close(p.outputs[1], np.concatenate([data(r, (2, 2), "int32") for r in range(hvd.size())]))
        xs = [data(hvd.rank(), (hvd.size(), 2), "float32"), data(hvd.rank(), (2 * hvd.size(),), "int64")]
        p = table().call(verb, nt.REDUCESCATTER, xs, name="group", **options).ok()
        close(p.outputs[0], everyone((hvd.size(), 2), "float32").sum(axis=0)[hvd.rank() : hvd.rank() + 1])
        close(
            p.outputs[1],
            everyone((2 * hvd.size(),), "int64").sum(axis=0)[2 * hvd.rank() : 2 * hvd.rank() + 2],
        )


def test_unnamed_calls_are_counted():
    calls = [
        table().submit(nt.ALLREDUCE, [data(hvd.rank(), (3,), "float32", k)], [np.empty(3, np.float32)])
        for k in range(20)
    ]
    gathers = [table().submit(nt.ALLGATHER, [data(hvd.rank(), (1,), "int32", k)], name="") for k in range(20)]
    for k in reversed(range(20)):
        _, kept = calls[k].ok().keep[1][0]
        close(kept[0], everyone((3,), "float32", k).sum(axis=0))
        close(
            gathers[k].ok().outputs[0], np.concatenate([data(r, (1,), "int32", k) for r in range(hvd.size())])
        )


def test_ranks_submit_in_any_order():
    order = list(range(200))
    random.Random(hvd.rank()).shuffle(order)
    xs = [data(hvd.rank(), (k % 17,), "float64", k) for k in range(200)]
    ys = [np.empty_like(x) for x in xs]
    calls = {k: table().submit(nt.ALLREDUCE, [xs[k]], [ys[k]], f"any.{k}", urgent=k % 7 == 0) for k in order}
    for k in range(200):
        calls[k].ok()
        close(ys[k], everyone((k % 17,), "float64", k).sum(axis=0))
    assert len({p.thread for p in calls.values()}) == 1
    assert calls[0].thread != threading.get_native_id()


def test_a_submit_that_stays_is_done_on_its_thread():
    """Unless another thread of the engine was about to call done(): submit() waits for that only a moment."""
    here = 0
    for k in range(20):
        x = data(hvd.rank(), (k, 3), "float32", k)
        y = np.empty_like(x)
        early = table().submit(nt.ALLREDUCE, [x], [np.empty_like(x)], "early")
        p = table().submit(nt.ALLREDUCE, [x], [y], "stays", urgent=True, stay_ns=60_000_000_000)
        p.ok()
        here += p.thread == threading.get_native_id()
        assert p.times == 1
        close(y, everyone((k, 3), "float32", k).sum(axis=0))
        early.ok()
    assert here > 0
    p = table().submit(nt.ALLGATHER, [x], urgent=True, stay_ns=60_000_000_000).ok()
    assert (p.times, p.outputs[0].shape) == (1, (19 * hvd.size(), 3))
    table().submit(nt.JOIN, stay_ns=1_000).ok()


def test_ranks_that_stay_submit_in_any_order():
    # Each has one thread, which stays with an operation that another rank submits later.
    for turn in range(3):
        order = list(range(40))
        random.Random(100 * turn + hvd.rank()).shuffle(order)
        xs = [data(hvd.rank(), (3,), "float64", k) for k in order]
        calls = [
            table().submit(nt.ALLREDUCE, [x], [x], f"stays.{k}", urgent=k % 3 == 0, stay_ns=300_000)
            for k, x in zip(order, xs)
        ]
        for k, x, p in zip(order, xs, calls):
            p.ok()
            close(x, everyone((3,), "float64", k).sum(axis=0))


def test_eight_threads():
    wrong = []

    def work(number: int) -> None:
        try:
            for k in range(24):
                x = data(hvd.rank(), (k,), "float32", number + k)
                y = np.empty_like(x)
                verb = "run" if (number + k) % 3 == 0 else "submit"
                stay_ns = 50_000 * (k % 5)
                table().call(verb, nt.ALLREDUCE, [x], [y], f"thread.{number}", stay_ns=stay_ns).ok()
                close(y, everyone((k,), "float32", number + k).sum(axis=0))
                p = table().call(verb, nt.ALLGATHER, [x], name=f"thread.{number}", stay_ns=stay_ns).ok()
                assert p.outputs[0].shape == (k * hvd.size(),)
        except BaseException:
            wrong.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]


def test_done_may_submit():
    x = np.ones(3, np.float32)
    ended = threading.Event()
    links = []
    numbers = itertools.count(1)  # not that of the links: a done() may come before its submit() returns

    def next_link(p: nt.Pending) -> None:
        assert p.status == OK, p.message
        number = next(numbers)
        if number == 50:
            return ended.set()
        stay_ns = 1_000_000 * (number % 2)  # within a done() it has no effect
        if number % 10 == 5:
            table().run(nt.ALLREDUCE, [x], [x], f"link.{number}").ok()
        links.append(
            table().submit(
                nt.ALLREDUCE,
                [x],
                [x],
                f"link.{number}",
                reduce_op=nt.MAX,
                stay_ns=stay_ns,
                then=next_link,
            )
        )

    first = {"stay_ns": 60_000_000_000, "urgent": True}
    links.append(table().submit(nt.ALLREDUCE, [x], [x], "link.0", reduce_op=nt.MAX, then=next_link, **first))
    assert ended.wait(60)
    close(x, np.full(3, float(hvd.size()) ** 5))
    assert all(p.times == 1 for p in links)


@needs(ranks=2)
def test_process_sets():
    members = [0, 2] if hvd.size() > 2 else [1]
    other = hvd.add_process_set(members)
    number = other.process_set_id
    assert table().raw.process_set_size(number) == len(members)
    if hvd.rank() not in members:
        assert (table().raw.process_set_rank(number), table().raw.scattered_rows(4, number)) == (-4, -4)
        p = table().submit(nt.ALLREDUCE, [np.ones(1)], [np.ones(1)], process_set=number)
        assert p.status == nt.INVALID_ARGUMENT and "not a member" in p.message, p.message
    else:
        assert table().raw.process_set_rank(number) == members.index(hvd.rank())
        for verb, options in ways():
            x = data(hvd.rank(), (5,), "float32")
            y = np.empty_like(x)
            table().call(verb, nt.ALLREDUCE, [x], [y], "in a set", process_set=number, **options).ok()
            close(y, everyone((5,), "float32", ranks=members).sum(axis=0))
            p = table().call(verb, nt.ALLGATHER, [x], process_set=number, **options).ok()
            assert p.outputs[0].shape == (5 * len(members),)
            table().call(verb, nt.BARRIER, process_set=number, **options).ok()
    # Calls that are pending in a set that ends fail.
    p = (
        table().submit(nt.BROADCAST, [np.ones(1)], [np.ones(1)], "late", number, root=0)
        if hvd.rank() < hvd.size() - 2
        else None
    )
    hvd.remove_process_set(other)
    if p:
        p.result()
        assert p.status == nt.ABORTED and "removed" in p.message, (p.status, p.message)
    assert table().raw.process_set_size(number) == -3


def test_many_pending_at_once():
    xs = [np.full(2, hvd.rank() + k, np.float32) for k in range(400)]
    ys = [np.empty_like(x) for x in xs]
    calls = [table().submit(nt.ALLREDUCE, [x], [y], f"many.{k}") for k, (x, y) in enumerate(zip(xs, ys))]
    table().submit(nt.BARRIER).ok()
    for k, p in enumerate(calls):
        p.ok()
        assert p.times == 1
        close(ys[k], np.full(2, sum(range(hvd.size())) + k * hvd.size(), np.float64))


def test_join():
    # Rank r has r more steps than rank 0; ranks that have joined contribute zeros.
    for step in range(hvd.rank()):
        x = np.full(3, hvd.rank() + 1.0, np.float32)
        table().submit(nt.ALLREDUCE, [x], [x]).ok()
        close(x, np.full(3, sum(r + 1.0 for r in range(hvd.size()) if r > step)))
    if hvd.rank() > 0:
        await_told("refused")
    join = table().submit(nt.JOIN)
    if hvd.rank() == 0 and hvd.size() > 1:
        p = table().submit(nt.ALLREDUCE, [np.ones(1)], [np.ones(1)]).result()
        assert p.status == nt.FAILED_PRECONDITION and "this rank has joined" in p.message, p.message
        tell("refused")
    assert join.ok().last_joined in range(hvd.size())
    assert table().run(nt.JOIN).ok().last_joined in range(hvd.size())


def test_python_and_the_table_at_once():
    x = data(hvd.rank(), (8,), "float32")
    p = table().submit(nt.ALLREDUCE, [x], [np.empty_like(x)], "both")
    found = hvd.allreduce(x, op=hvd.Max, name="python")
    close(found, everyone((8,), "float32").max(axis=0))
    p.ok()
    # There is one name space: Python on one rank and the table on another use the same names.
    if hvd.rank() == 0:
        found = hvd.allreduce(x, op=hvd.Sum, name="meet")
    else:
        found = np.empty_like(x)
        table().submit(nt.ALLREDUCE, [x], [found], "meet").ok()
    close(found, everyone((8,), "float32").sum(axis=0))
