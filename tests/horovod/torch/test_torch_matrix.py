"""The matrix: every operation with every type and shape, on all ranks and on process sets, against NumPy in float64. Run
on every rank by tests/harness; a mistake names its case, which is the operation's name as well.

Forms: synchronous, asynchronous, in place, grouped. They take turns: over the cases of a check each form meets each set,
type, reduction and shape. With HVD_TEST_WHOLE_MATRIX every case has all forms. Every third case is unnamed. Movements are
compared bit by bit. Sets of some ranks take every second shape and no factors.
"""

import itertools
import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod.torch._operand import BY_ADDRESS
from torch_support import FLOATS, REDUCIBLE, TOLERANCE, as_float64, data_of, reduced

sys.path.append(str(Path(__file__).resolve().parents[2] / "hvd_core/engine"))
from adasum_reference import tree
from torch_support import NO_DLPACK_API

pytestmark = [
    pytest.mark.ranks(3, framework="torch"),
    pytest.mark.ranks(2, framework="torch", id="no-dlpack", process_env=NO_DLPACK_API),
    pytest.mark.ranks(
        3, framework="torch", id="whole", process_env={"HVD_TEST_WHOLE_MATRIX": "1"}, slow=True
    ),
]

OPS = {name: getattr(hvd, name) for name in ("Average", "Sum", "Min", "Max", "Product", "Adasum")}
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
FLOAT8 = [
    getattr(torch, f"float8_{kind}")
    for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
    if hasattr(torch, f"float8_{kind}")
]
WIDE = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
MOVABLE = REDUCIBLE + [torch.bool] + WIDE + FLOAT8
if BY_ADDRESS:  # tensors reach the same engine by another path: a few types are enough
    REDUCIBLE = [torch.int32, torch.bfloat16]
    MOVABLE = [torch.bool, torch.float32, *FLOAT8[:2]]
SHAPES = [(), (0,), (1,), (3, 0, 2), (5, 7), (2, 3, 4, 5), (1031,)]
TAILS = [(), (3,), (0, 2)]
ROWS = {"even": lambda r: 4, "more": lambda r: r + 1, "odd only": lambda r: 3 * (r % 2), "none": lambda r: 0}

# Cases of each set, by its ranks: members of a set agree on it, whichever other sets they are in.
counted = Counter()


def sets():
    """The process sets of this job that this rank is in. Calls init() again, since it takes the sets."""
    size = hvd.size()
    hvd.shutdown()
    some = [[0], [size - 1, 0], list(range(1, size))] if size > 1 else []
    distinct = {tuple(sorted(set(ranks))) for ranks in some} - {tuple(range(size))}
    named = [hvd.ProcessSet(ranks) for ranks in sorted(distinct)]
    hvd.init(process_sets=named)
    return [s for s in (hvd.global_process_set, *named) if s.included()]


class Case:
    """One combination on a set: its name, and whether the name is passed to the operation."""

    def __init__(self, *words, process_set):
        ranks = tuple(process_set.ranks)
        self.text = " ".join(str(word).replace("torch.", "") for word in (*words, ranks))
        counted[ranks] += 1
        self.name = self.text if counted[ranks] % 3 else None

    def __enter__(self):
        return self.name

    def __exit__(self, kind, error, trace):
        if error is not None and not isinstance(error, KeyboardInterrupt):
            raise AssertionError(f"rank {hvd.rank()}: {self.text}: {kind.__name__}: {error}") from error


class Turns:
    """The forms of an operation, `each` of them for a case: those that the case's traits have met least so far.

    Each set has turns of its own: its members take the same forms, whichever other sets they are in.
    """

    def __init__(self, forms, each):
        self.forms = list(forms)
        self.each = len(self.forms) if os.environ.get("HVD_TEST_WHOLE_MATRIX") else each
        self.met = Counter()  # by set, trait and form

    def of(self, process_set, *traits):
        """The forms of the next case on a set. Traits are the case's type, reduction, shape and the like."""
        ranks = tuple(process_set.ranks)
        keys = [(ranks, *trait) for trait in enumerate(("any", *traits))]
        chosen = sorted(self.forms, key=lambda form: sum(self.met[key, form] for key in keys))[: self.each]
        self.met.update(itertools.product(keys, chosen))
        return chosen

    def expect_all(self):
        """Each trait of a set has met each form, if it had as many cases."""
        met, cases = Counter(), Counter()
        for (key, _), number in self.met.items():
            met[key] += 1
            cases[key] += number
        missing = [key for key in met if met[key] < min(len(self.forms), cases[key])]
        assert met and not missing, f"these have not met all forms: {missing}"


def some_of(process_set, shapes, start=0):
    return shapes if process_set is hvd.global_process_set else shapes[start::2]


def factors(process_set, op, shape):
    """Pairs of prescale_factor and postscale_factor that are tried."""
    plain = process_set is not hvd.global_process_set or op not in (hvd.Sum, hvd.Average) or len(shape) != 2
    return [(1.0, 1.0)] if plain else [(1.0, 1.0), (0.5, 3.0)]


def close(found, wanted, dtype):
    """`found` is a tensor of this type with the wanted values: exactly for integers, closely for floats."""
    assert found.dtype is dtype and tuple(found.shape) == wanted.shape, (found.dtype, found.shape)
    assert not found.requires_grad and found.is_contiguous()
    if not wanted.size:
        return
    worst = float(np.abs(as_float64(found) - wanted).max())
    allowed = TOLERANCE.get(dtype, 0.0) * max(1.0, float(np.abs(wanted).max()))
    assert worst <= allowed, f"off by {worst}, allowed {allowed}: found {found}, wanted {wanted}"


@cache
def data(rank, shape, dtype, seed=0):
    """The contribution of `rank`. Read only."""
    if dtype in FLOAT8:
        return data_of(rank, shape, torch.float32, seed).to(dtype)
    if dtype in WIDE:
        return data_of(rank, shape, torch.int64, seed).to(dtype)
    return data_of(rank, shape, dtype, seed)


def bits(tensor):
    """The values of a tensor as unsigned integers of its width, in NumPy."""
    size = tensor.element_size()
    return (
        tensor.contiguous()
        .view(torch.uint8 if size == 1 else getattr(torch, f"int{8 * size}"))
        .numpy()
        .view(BITS[size])
    )


def same_bits(found, wanted, dtype):
    assert found.dtype is dtype and tuple(found.shape) == wanted.shape, (
        found.dtype,
        found.shape,
        wanted.shape,
    )
    assert np.array_equal(bits(found), wanted), f"found {found}, wanted the bits {wanted}"


@cache
def wanted_reduction(op, members, shape, dtype, prescale=1.0, postscale=1.0, seed=0):
    if op != hvd.Adasum:
        return reduced(op, members, shape, dtype, prescale, postscale, seed)
    parts = [as_float64(data_of(r, shape, dtype, seed)) for r in members]
    return tree([p.ravel() for p in parts]).reshape(shape) if parts[0].size else parts[0]


# The call of each form of an allreduce with two tensors; it returns both results.
def each(call, wait=lambda result: result):
    def form(tensors, name, **how):
        return [wait(call(t, name=name and f"{name} {i}", **how)) for i, t in enumerate(tensors)]

    return form


def both(call, wait=lambda result: result):
    return lambda tensors, name, **how: wait(call(tensors, name=name, **how))


def all_at_once(call):
    """Asynchronous: both are pending before the wait, which is for the last one first."""

    def form(tensors, name, **how):
        handles = [call(t, name=name and f"{name} {i}", **how) for i, t in enumerate(tensors)]
        return [hvd.synchronize(handle) for handle in reversed(handles)][::-1]

    return form


ALLREDUCES = {
    "allreduce": each(hvd.allreduce),
    "allreduce_": each(hvd.allreduce_),
    "allreduce_async": all_at_once(hvd.allreduce_async),
    "allreduce_async_": all_at_once(hvd.allreduce_async_),
    "grouped_allreduce": both(hvd.grouped_allreduce),
    "grouped_allreduce_": both(hvd.grouped_allreduce_),
    "grouped_allreduce_async": both(hvd.grouped_allreduce_async, hvd.synchronize),
    "grouped_allreduce_async_": both(hvd.grouped_allreduce_async_, hvd.synchronize),
}


def test_allreduce():
    turns = Turns(ALLREDUCES, 2)
    for process_set, dtype, (op_name, op) in itertools.product(sets(), REDUCIBLE, OPS.items()):
        if op == hvd.Adasum and dtype not in FLOATS:
            continue
        members = tuple(process_set.ranks)
        cases = [(s, f) for s in some_of(process_set, SHAPES) for f in factors(process_set, op, s)]
        for shape, (prescale, postscale) in cases:
            # A second tensor has another shape.
            shapes = (shape, (3,))
            wanted = [
                wanted_reduction(op, members, s, dtype, prescale, postscale, seed=i)
                for i, s in enumerate(shapes)
            ]
            how = {"op": op, "prescale_factor": prescale, "postscale_factor": postscale}
            for form_name in turns.of(process_set, dtype, op_name, shape):
                form = ALLREDUCES[form_name]
                with Case(form_name, op_name, dtype, shape, prescale, process_set=process_set) as name:
                    originals = [data(hvd.rank(), s, dtype, seed=i) for i, s in enumerate(shapes)]
                    mine = [t.clone() for t in originals]
                    found = form(mine, name, process_set=process_set, **how)
                    in_place = form_name.endswith("_")
                    for result, given, original, values in zip(found, mine, originals, wanted):
                        close(result, values, dtype)
                        assert (result is given) if in_place else torch.equal(given, original), "the input"
    turns.expect_all()


SCATTERS = {
    "reducescatter": each(hvd.reducescatter),
    "reducescatter_async": all_at_once(hvd.reducescatter_async),
    "grouped_reducescatter": both(hvd.grouped_reducescatter),
    "grouped_reducescatter_async": both(hvd.grouped_reducescatter_async, hvd.synchronize),
}


def own_rows(process_set, rows):
    """The rows that a reducescatter gives to this rank: the first ranks get one more."""
    share, more = divmod(rows, process_set.size())
    me = process_set.rank()
    start = me * share + min(me, more)
    return slice(start, start + share + (me < more))


def test_reducescatter():
    turns = Turns(SCATTERS, 1)
    for process_set, dtype, (op_name, op) in itertools.product(sets(), REDUCIBLE, OPS.items()):
        if op == hvd.Adasum:
            continue
        members = tuple(process_set.ranks)
        cases = [(s, f) for s in some_of(process_set, SHAPES, 1) if s for f in factors(process_set, op, s)]
        for shape, (prescale, postscale) in cases:
            shapes = (shape, (4, 2))
            wanted = [
                wanted_reduction(op, members, s, dtype, prescale, postscale, seed=i)[
                    own_rows(process_set, s[0])
                ]
                for i, s in enumerate(shapes)
            ]
            how = {"op": op, "prescale_factor": prescale, "postscale_factor": postscale}
            for form_name in turns.of(process_set, dtype, op_name, shape):
                form = SCATTERS[form_name]
                with Case(form_name, op_name, dtype, shape, prescale, process_set=process_set) as name:
                    mine = [data(hvd.rank(), s, dtype, seed=i) for i, s in enumerate(shapes)]
                    for result, values in zip(form(mine, name, process_set=process_set, **how), wanted):
                        close(result, values, dtype)
    turns.expect_all()


GATHERS = {
    "allgather": each(hvd.allgather),
    "allgather_async": all_at_once(hvd.allgather_async),
    "grouped_allgather": both(hvd.grouped_allgather),
    "grouped_allgather_async": both(hvd.grouped_allgather_async, hvd.synchronize),
}


def test_allgather():
    turns = Turns(GATHERS, 1)
    some = ((s, d, t, r) for s in sets() for d in MOVABLE for t in some_of(s, TAILS, 1) for r in ROWS.items())
    for process_set, dtype, tail, (rows_name, rows) in some:
        shapes = (lambda r: (rows(r), *tail), lambda r: (2,))
        wanted = [
            np.concatenate([bits(data(r, shape(r), dtype, seed=i)) for r in process_set.ranks])
            for i, shape in enumerate(shapes)
        ]
        for form_name in turns.of(process_set, dtype, tail, rows_name):
            form = GATHERS[form_name]
            with Case(form_name, dtype, tail, rows_name, process_set=process_set) as name:
                mine = [data(hvd.rank(), shape(hvd.rank()), dtype, seed=i) for i, shape in enumerate(shapes)]
                for result, values in zip(form(mine, name, process_set=process_set), wanted):
                    same_bits(result, values, dtype)
    turns.expect_all()


BROADCASTS = {
    "broadcast": each(hvd.broadcast),
    "broadcast_": each(hvd.broadcast_),
    "broadcast_async": all_at_once(hvd.broadcast_async),
    "broadcast_async_": all_at_once(hvd.broadcast_async_),
}


def test_broadcast():
    turns = Turns(BROADCASTS, 1)
    some = ((s, d, shape) for s in sets() for d in MOVABLE for shape in some_of(s, SHAPES))
    for process_set, dtype, shape in some:
        roots = sorted({process_set.ranks[0], process_set.ranks[-1]})
        chosen = [(root, form) for root in roots for form in turns.of(process_set, dtype, shape)]
        for root, form_name in chosen:
            form = BROADCASTS[form_name]
            with Case(form_name, root, dtype, shape, process_set=process_set) as name:
                mine = [data(hvd.rank(), shape, dtype, seed=i).clone() for i in range(2)]
                before = [bits(t.clone()) for t in mine]
                found = form(mine, name, root_rank=root, process_set=process_set)
                for i, result in enumerate(found):
                    same_bits(result, bits(data(root, shape, dtype, seed=i)), dtype)
                    in_place = form_name.endswith("_")
                    assert (result is mine[i]) if in_place else np.array_equal(bits(mine[i]), before[i])
    turns.expect_all()


# Rows from rank a to rank b of a set of n, and rows that are not sent.
SPLITS = {
    "none": (lambda a, b, n: 0, 0),
    "one each": (lambda a, b, n: 1, 0),
    "uneven": (lambda a, b, n: (a + 2 * b) % 3, 0),
    "to the last": (lambda a, b, n: 2 * (b == n - 1), 0),
    "some are kept": (lambda a, b, n: 1 + (a == b), 2),
}
SPLIT_TYPES = {
    "list": list,
    "tuple of numpy": lambda rows: tuple(np.array(rows)),
    "int32": lambda rows: torch.tensor(rows, dtype=torch.int32),
    "int64": lambda rows: torch.tensor(rows),
}


def test_alltoall():
    turns = Turns(itertools.product((False, True), SPLIT_TYPES), 1)
    some = ((s, d, t, p) for s in sets() for d in MOVABLE for t in some_of(s, TAILS, 1) for p in SPLITS)
    for process_set, dtype, tail, pattern in some:
        rows, kept = SPLITS[pattern]
        n, me = process_set.size(), process_set.rank()

        def sent(position):
            """The contribution of a member, and its splits."""
            splits = [rows(position, to, n) for to in range(n)]
            return data(process_set.ranks[position], (sum(splits) + kept, *tail), dtype), splits

        parts, received = [], []
        for position in range(n):
            tensor, splits = sent(position)
            start = sum(splits[:me])
            parts.append(bits(tensor)[start : start + splits[me]])
            received.append(splits[me])
        wanted = np.concatenate(parts)
        mine, splits = sent(me)
        for asynchronous, type_name in turns.of(process_set, dtype, tail, pattern):
            words = ("alltoall", asynchronous, dtype, tail, pattern, type_name)
            with Case(*words, process_set=process_set) as name:
                given = SPLIT_TYPES[type_name](splits)
                how = {"name": name, "process_set": process_set}
                if asynchronous:
                    output, counts = hvd.synchronize(hvd.alltoall_async(mine, given, **how))
                else:
                    output, counts = hvd.alltoall(mine, splits=given, **how)
                same_bits(output, wanted, dtype)
                assert counts.tolist() == received, (counts, received)
                assert counts.dtype is (torch.int64 if type_name == "int64" else torch.int32)
        if pattern in ("none", "one each"):
            with Case("alltoall", "without splits", dtype, tail, process_set=process_set) as name:
                output = hvd.alltoall(mine, name=name, process_set=process_set)
                same_bits(output, wanted, dtype)
                output, counts = hvd.synchronize(hvd.alltoall_async(mine, process_set=process_set))
                same_bits(output, wanted, dtype)
                assert counts.dtype is torch.int32 and counts.tolist() == received
    turns.expect_all()
