"""Checks of the operations of horovod.jax at once and in compiled programs, run on every rank by tests/harness."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from harness.rank import expect, needs
from horovod.common.exceptions import OperationFailedError
from jax_support import (
    COMBINE,
    ME,
    MOVABLE,
    RANKS,
    REDUCIBLE,
    SIZE,
    WAYS,
    WIDE,
    all_of,
    mine,
    same,
    values_of,
)


def check_allreduce():
    for dtype in REDUCIBLE:
        for op, combine in COMBINE.items():
            for shape in [(), (0,), (17,), (3, 4)]:
                wanted = combine(all_of(shape, dtype))
                same(hvd.allreduce(mine(shape, dtype), op=op), wanted, dtype)


def check_allreduce_in_programs():
    """One program with all types, ops and shapes, since compiling takes longer than running."""
    inputs = {
        (dtype, op, shape): mine(shape, dtype)
        for dtype in REDUCIBLE
        for op in COMBINE
        for shape in [(), (0,), (17,), (3, 4)]
    }
    program = jax.jit(lambda xs: [hvd.allreduce(x, op=op) for (_, op, _), x in zip(inputs, xs)])
    for (dtype, op, shape), found in zip(inputs, program(list(inputs.values()))):
        same(found, COMBINE[op](all_of(shape, dtype)), dtype)


def check_types_of_64_bits():
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable_x64(True):
        for dtype in WIDE:
            for way in WAYS.values():
                x = jnp.asarray(values_of(ME, (5,)), dtype)
                same(way(lambda x: hvd.allreduce(x, op=hvd.Sum))(x), all_of((5,)).sum(0), dtype)


def check_trees_and_groups():
    tree = {"a": mine((3,)), "b": [mine((2, 2), "int32"), (mine((), "bfloat16"),)], "c": None}
    for way in WAYS.values():
        found = way(lambda t: hvd.allreduce(t, op=hvd.Sum))(tree)
        assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(tree)
        same(found["a"], all_of((3,)).sum(0))
        same(found["b"][0], all_of((2, 2), "int32").sum(0), "int32")
        same(found["b"][1][0], all_of((), "bfloat16").sum(0), "bfloat16")
        first, second = way(lambda xs: hvd.grouped_allreduce(xs))([mine((3,)), mine((4,))])
        same(first, all_of((3,)).mean(0))
        same(second, all_of((4,)).mean(0))
        first, second = way(lambda xs: hvd.grouped_allgather(xs))([mine((2, 3)), mine((1,), "int32")])
        same(first, np.concatenate(all_of((2, 3))))
        same(second, np.concatenate(all_of((1,))), "int32")
        first, second = way(lambda xs: hvd.grouped_reducescatter(xs, op=hvd.Sum))(
            [mine((SIZE, 3)), mine((2 * SIZE,))]
        )
        same(first, all_of((SIZE, 3)).sum(0)[ME : ME + 1])
        same(second, all_of((2 * SIZE,)).sum(0)[2 * ME : 2 * ME + 2])
        assert way(hvd.grouped_allreduce)([]) == [] and way(hvd.allreduce)({}) == {}
    expect(ValueError, lambda: hvd.grouped_allreduce(mine((3,))), "takes a list of tensors")


def check_moves():
    """The compiled way is one program with all types, as that of check_allreduce_in_programs()."""

    def moved(pairs):
        return [(hvd.allgather(few), hvd.broadcast(few, SIZE - 1), hvd.alltoall(many)) for few, many in pairs]

    pairs = [(mine((2, 3), dtype), mine((2 * SIZE, 3), dtype)) for dtype in MOVABLE]
    for way in WAYS.values():
        for dtype, (gathered, sent, exchanged) in zip(MOVABLE, way(moved)(pairs), strict=True):
            rows = all_of((2, 3), dtype)
            back = all_of((2 * SIZE, 3), dtype)[:, 2 * ME : 2 * ME + 2]
            same(gathered, np.concatenate(rows), dtype)
            same(sent, rows[-1], dtype)
            same(exchanged, np.concatenate(back), dtype)


def check_unequal_rows_at_once():
    found = hvd.allgather(mine((ME + 1, 3)))
    same(found, np.concatenate([values_of(r, (r + 1, 3)) for r in RANKS]))
    counts = [r + 1 for r in RANKS]
    start = sum(counts[:ME])
    wanted = [values_of(r, (sum(counts), 2))[start : start + ME + 1] for r in RANKS]
    for splits in (counts, jnp.array(counts)):
        output, received = hvd.alltoall(mine((sum(counts), 2)), splits)
        same(output, np.concatenate(wanted))
        assert received.tolist() == [ME + 1] * SIZE and received.dtype == jnp.int32
    assert hvd.allgather(jnp.zeros((0, 2))).shape == (0, 2)


def check_reducescatter():
    for rows in (2 * SIZE, 2 * SIZE + 1):
        first = ME * 2 + min(ME, rows - 2 * SIZE)
        last = first + 2 + (rows - 2 * SIZE > ME)
        for way in WAYS.values():
            scattered = way(lambda x: [hvd.reducescatter(x, op=op) for op in COMBINE])(mine((rows, 3)))
            for combine, found in zip(COMBINE.values(), scattered, strict=True):
                same(found, combine(all_of((rows, 3)))[first:last])
    expect(ValueError, lambda: hvd.reducescatter(mine((2,)), op=hvd.Adasum), "has no op Adasum")


def check_factors_and_compression():
    for way in WAYS.values():
        scaled, *compressed = way(
            lambda x: [
                hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3),
                hvd.allreduce(x, compression=hvd.Compression.fp16),
                hvd.allreduce(x, compression=hvd.Compression.bf16),
            ]
        )(mine((4,)))
        same(scaled, 1.5 * all_of((4,)).sum(0))
        for found in compressed:
            assert found.dtype == jnp.float32
            np.testing.assert_allclose(found, all_of((4,)).mean(0), rtol=1e-2)
    narrow, _ = hvd.Compression.bf16.compress(mine((4,), "float16"))
    assert narrow.dtype == jnp.float16


def check_adasum():
    x = jnp.eye(SIZE, 4)[ME]  # orthogonal: Adasum is the sum
    for way in WAYS.values():
        same(way(lambda x: hvd.allreduce(x, op=hvd.Adasum))(x), np.eye(SIZE, 4).sum(0))
    batch = jnp.stack([x, 2 * x, jnp.ones(4)])  # equal: Adasum is the value
    found = jax.jit(jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Adasum)))(batch)
    wanted = np.eye(SIZE, 4).sum(0)
    np.testing.assert_allclose(found, [wanted, 2 * wanted, np.ones(4)], rtol=1e-6)


@needs(ranks=3)
def check_process_sets():
    pair = hvd.add_process_set([0, 2])
    if ME in (0, 2):
        for way in WAYS.values():
            found = way(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=pair))(mine((3,)))
            same(found, all_of((3,), ranks=[0, 2]).sum(0))
            found = way(lambda x: hvd.allgather(x, process_set=pair))(mine((3,)))
            same(found, np.concatenate(all_of((3,), ranks=[0, 2])))
            same(way(lambda x: hvd.broadcast(x, 2, process_set=pair))(mine((3,))), values_of(2, (3,)))
            own = way(lambda x: hvd.reducescatter(x, op=hvd.Sum, process_set=pair))(mine((4,)))
            same(
                own,
                all_of((4,), ranks=[0, 2]).sum(0)[:2] if ME == 0 else all_of((4,), ranks=[0, 2]).sum(0)[2:],
            )
    hvd.remove_process_set(pair)
    expect(ValueError, lambda: hvd.allreduce(mine((3,)), process_set=pair), "not been registered")


def check_join():
    if ME == 0:
        hvd.allreduce(mine((2,)), name="before_the_last")
    assert hvd.join() in RANKS
    expect(ValueError, lambda: jax.jit(lambda x: hvd.join() + x)(1), "join() cannot be a part of a compiled")
    expect(ValueError, lambda: jax.jit(lambda x: hvd.barrier() or x)(1), "barrier() cannot be a part")
    hvd.barrier()


def check_parameters_and_objects():
    key = jax.random.key(ME)
    params = {
        "w": mine((3,)), "n": np.full((2,), ME, np.int64), "step": ME, "rate": 0.1 * ME, "key": key,
        "f": len, "text": "mine", "b": mine((2,), "bfloat16"), "flag": bool(ME),
    }  # fmt: skip
    root = SIZE - 1
    found = hvd.broadcast_parameters(params, root_rank=root)
    same(found["w"], values_of(root, (3,)))
    same(found["b"], values_of(root, (2,)), "bfloat16")
    assert (np.asarray(found["n"]) == root).all() and found["f"] is len and found["text"] == "mine"
    assert found["step"] == root and found["rate"] == 0.1 * root and found["flag"] is bool(root)
    assert type(found["step"]) is int and type(found["rate"]) is float
    assert (jax.random.key_data(found["key"]) == jax.random.key_data(jax.random.key(root))).all()
    assert hvd.broadcast_parameters({}) == {}
    assert hvd.broadcast_object({"rank": ME}, root_rank=root) == {"rank": root}
    assert hvd.allgather_object("a" * ME) == ["a" * r for r in RANKS]


def check_wrong_arguments_fail_everywhere():
    """A mistake of the last rank is an error on all ranks, and says whose mistake it was: at once and while tracing."""
    wrong = [
        (lambda x: hvd.allreduce(x, op=99, name="e0"), "Unknown reduce op"),
        (lambda x: hvd.allreduce(x.astype(bool), name="e0"), "Tensor type bool is not supported"),
        (lambda x: hvd.allreduce("text", name="e0"), ""),
        (lambda x: hvd.allreduce(x, process_set="all", name="e0"), ""),
    ]
    for way in WAYS.values():
        for call, text in wrong:
            if ME == SIZE - 1:
                expect((ValueError, TypeError), lambda w=way, c=call: w(c)(mine((2,))), text)
            else:
                expect(
                    (hvd.HorovodInternalError, jax.errors.JaxRuntimeError),
                    lambda w=way: jax.block_until_ready(w(lambda x: hvd.allreduce(x, name="e0"))(mine((2,)))),
                    text,
                )


@needs(ranks=2)
def check_mismatches_name_tensor_and_ranks():
    shape = (2 + (ME == 0),)
    for way, kind in ((lambda f: f, hvd.HorovodInternalError), (jax.jit, jax.errors.JaxRuntimeError)):
        call = way(lambda x: hvd.allreduce(x, name="unequal"))
        text = expect(kind, lambda c=call: jax.block_until_ready(c(mine(shape))))
        assert "unequal" in text and "rank 0: " in text and ("rank 1: " in text or "ranks 1, 2: " in text), (
            text
        )
        gather = way(lambda x: hvd.allgather(x, name="rows"))
    rows = expect(jax.errors.JaxRuntimeError, lambda: jax.block_until_ready(gather(mine((1 + (ME == 0), 2)))))
    assert "rows" in rows and "outside of jit" in rows


def check_alltoall_in_programs_needs_equal_shares():
    if SIZE > 1:
        expect(ValueError, lambda: jax.jit(hvd.alltoall)(mine((SIZE + 1, 2))), "equally many rows")
    expect(
        ValueError,
        lambda: jax.jit(lambda x: hvd.alltoall(x, [1] * SIZE))(mine((SIZE,))),
        "outside of compiled",
    )


def check_trees_that_differ_are_refused_everywhere():
    if SIZE == 1:
        pytest.skip("one rank has no other to differ from")
    last = SIZE - 1
    others, odd = ("rank 0" if last == 1 else "ranks 0, 1"), last == ME
    for tree, text in (
        # Of the same shapes: without names they would be taken for each other.
        (
            {"a": mine((3,)), "c" if odd else "b": mine((2,))},
            f"\"['c']\" is on rank {last}, but not on {others}",
        ),
        ({"a": mine((3,))} if odd else {}, f"\"['a']\" is on rank {last}, but not on {others}"),
        ({"n": 1.0 if odd else 1}, f"\"['n']\" is () int64 on {others}, but () float64 on rank {last}"),
    ):
        expect(OperationFailedError, lambda tree=tree: hvd.broadcast_parameters(tree), text)
