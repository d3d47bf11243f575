"""Calls to the table for front ends without Python that cannot be carried out, and the errors on each rank."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import hvd_core as hvd
import native_table as nt
from frontend_job import JOB, close, table, ways
from harness.rank import needs

pytestmark = pytest.mark.ranks(1, 2, 3, init_options=JOB)


@needs(ranks=2)
def test_ranks_that_disagree():
    for verb, options in ways():
        x, y = np.ones(4, np.float32), np.empty(4, np.float32)
        op = nt.SUM if hvd.rank() else nt.MAX
        p = table().call(verb, nt.ALLREDUCE, [x], [y], "clash", reduce_op=op, **options).result()
        assert p.status == nt.FAILED_PRECONDITION and "Mismatched reduction" in p.message, (
            p.status,
            p.message,
        )
        x = np.ones(4 + hvd.rank(), np.float32)
        p = table().call(verb, nt.ALLREDUCE, [x], [x], "clash", **options).result()
        assert p.status == nt.FAILED_PRECONDITION and "Mismatched ALLREDUCE tensor shapes" in p.message, (
            p.message
        )
        assert (p.times, p.lingers) == (1, 0)
        p = table().call(verb, nt.ALLGATHER, [np.full((), 3, np.float32)], name="flat", **options).result()
        assert p.status == nt.FAILED_PRECONDITION and "rank-zero tensor" in p.message, p.message


@needs(ranks=2)
def test_ranks_that_copy_from_a_device_and_ranks_that_do_not():
    for verb, options in ways():
        x = np.ones((hvd.size(), 2), np.float32)
        copied = {**options, "staged_from": None if hvd.rank() else b"moon"}
        for call, label in (
            (lambda how: table().call(verb, nt.ALLREDUCE, [x], [x], "copied", **how), "ALLREDUCE"),
            (lambda how: table().call(verb, nt.ALLGATHER, [x], name="copied", **how), "ALLGATHER"),
        ):
            p = call(copied).result()
            assert p.status == nt.FAILED_PRECONDITION and f"Mismatched {label} device" in p.message, p.message
            assert "on staged moon" in p.message and "on cpu" in p.message, p.message
            call({**options, "staged_from": b"moon"}).ok()
            # A caller that was compiled with an earlier header has no such field.
            call({**copied, "struct_size": nt.Call.staged_from.offset}).ok()


def test_mistakes_are_the_callers_and_heard_by_all():
    x = np.ones((4, 2), np.float32)
    y = np.empty_like(x)
    odd = nt.Tensor(x.ctypes.data, nt.tensor_of(x)[0].shape, 2, 77, None, 0, 0, None)
    negative = nt.tensor_of(x)
    negative[0].shape[0] = -4
    nowhere = nt.Tensor(None, nt.tensor_of(x)[0].shape, 2, 7, None, 0, 0, None)
    elsewhere = nt.Tensor(x.ctypes.data, nt.tensor_of(x)[0].shape, 2, 7, b"moon", 0, 0, None)
    scalar = np.ones((), np.float32)
    mistakes = [
        ((nt.ALLREDUCE, [x], [np.empty(3, np.float32)]), {}, "shape and type of its input"),
        ((nt.ALLREDUCE, [x], None), {}, "as many outputs as inputs"),
        ((nt.ALLREDUCE, [], []), {}, "at least one tensor"),
        ((nt.ALLREDUCE, [(odd, x)], [y]), {}, "unknown tensor type 77"),
        ((nt.ALLREDUCE, [negative], [y]), {}, "negative"),
        ((nt.ALLREDUCE, [(nowhere, x)], [y]), {}, "no memory"),
        ((nt.ALLREDUCE, [(elsewhere, x)], [(elsewhere, x)]), {}, "no backend serves"),
        ((nt.ALLREDUCE, [x], [y]), {"reduce_op": 55}, "unknown reduce op 55"),
        ((nt.ALLREDUCE, [x], [y]), {"prescale": 0.0}, "must not be 0"),
        ((nt.ALLREDUCE, [x.astype(int)], [y.astype(int)]), {"reduce_op": nt.ADASUM}, "floating-point"),
        ((nt.BROADCAST, [x], [y]), {"root": 99}, "invalid root rank 99"),
        ((nt.REDUCESCATTER, [scalar], [scalar]), {}, "does not support scalar inputs"),
        ((nt.REDUCESCATTER, [x], [np.empty((9, 2), np.float32)]), {}, "share of its rows"),
        ((nt.ALLTOALL, [x, x], None), {}, "several tensors"),
        ((nt.ALLTOALL, [x], None), {"splits": [1] * (hvd.size() + 1)}, "number of workers"),
        ((nt.ALLTOALL, [x], None), {"splits": [99] * hvd.size()}, "greater than the first dimension"),
    ]
    bad = hvd.size() - 1  # the rank with the mistake
    for (verb, options), ((op, ins, outs), more, text) in itertools.product(ways(), mistakes):
        if hvd.rank() == bad:
            p = table().call(verb, op, ins, outs, "wrong", **more, **options)
            assert p.times == 1, "a call that is refused is told at once"
            assert p.status == nt.INVALID_ARGUMENT and text in p.message, (p.status, p.message)
            assert (p.outputs, p.received) == ([], None)
        else:
            fine = None if op in (nt.ALLTOALL, nt.REDUCESCATTER) else [y]
            rows = [1] + [0] * (hvd.size() - 1) if op == nt.ALLTOALL else None
            p = table().call(verb, op, [x], fine, "wrong", splits=rows, **options).result()
            assert p.status == nt.INVALID_ARGUMENT, (p.status, p.message)
            assert f"on rank {bad}" in p.message and text in p.message, p.message
        table().run(nt.ALLREDUCE, [x], [y], "wrong").ok()
        close(y, np.full((4, 2), float(hvd.size())))


def test_mistakes_that_concern_nobody_else():
    x, y = np.ones(2, np.float32), np.empty(2, np.float32)
    for verb, options in ways():
        p = table().call(verb, 17, [x], [y], **options)
        assert (p.times, p.status) == (1, nt.INVALID_ARGUMENT) and "unknown operation 17" in p.message, (
            p.message
        )
        p = table().call(verb, nt.ALLREDUCE, [x], [y], process_set=99, **options)
        assert (p.times, p.status) == (1, nt.INVALID_ARGUMENT) and "does not exist" in p.message, p.message
    table().run(nt.BARRIER).ok()


@needs(ranks=2)
def test_a_name_twice():
    x, y = np.ones(2, np.float32), np.empty(2, np.float32)
    if hvd.rank() == 0:
        first = table().submit(nt.ALLREDUCE, [x], [y], "twice")
        second = table().submit(nt.ALLREDUCE, [x], [y], "twice")
        assert (second.times, second.status) == (1, nt.INVALID_ARGUMENT), second.message
        assert "same name as another tensor" in second.message
    table().run(nt.BARRIER).ok()
    if hvd.rank() > 0:
        first = table().submit(nt.ALLREDUCE, [x], [y], "twice")
    first.ok()
    close(y, np.full(2, float(hvd.size())))
    if hvd.rank() > 0:  # rank 0's second call counts as a submission
        p = table().submit(nt.ALLREDUCE, [x], [y], "twice").result()
        assert p.status == nt.INVALID_ARGUMENT and "same name" in p.message, p.message
    table().run(nt.BARRIER).ok()


def test_poison():
    x = np.ones(2, np.float32)
    for op, reduce_op in (
        (nt.ALLREDUCE, nt.SUM),
        (nt.ALLREDUCE, nt.ADASUM),
        (nt.ALLGATHER, 0),
        (nt.ALLREDUCE, nt.AVG),
    ):
        for name in ("spoilt", None):
            if hvd.rank() == 0:
                table().raw.poison(op, reduce_op, name and name.encode(), 0, b"the front end said no")
            else:
                outs = [x.copy()] if op == nt.ALLREDUCE else None
                p = table().submit(op, [x], outs, name, reduce_op=reduce_op).result()
                assert p.status == nt.INVALID_ARGUMENT, (p.status, p.message)
                assert "the front end said no" in p.message and "rank 0" in p.message, p.message
    table().raw.poison(nt.ALLREDUCE, 0, b"x", 99, b"of no set")
    table().raw.poison(99, 0, b"x", 0, b"of no operation")
    table().raw.poison(nt.BARRIER, 0, None, 0, None)
    p = table().submit(nt.ALLREDUCE, [x], [x]).ok()
