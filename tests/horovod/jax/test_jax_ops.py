"""The operations of horovod.jax, at once and in compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd
from harness.rank import expect
from horovod.common.exceptions import OperationFailedError
from jax_support import COMBINE, MOVABLE, REDUCIBLE, WAYS, WIDE, all_of, mine, on_jax, same, values_of

pytestmark = [on_jax(2), on_jax(1, slow=True)]


def test_allreduce():
    for dtype in REDUCIBLE:
        for op, combine in COMBINE.items():
            for shape in [(), (0,), (17,), (3, 4)]:
                wanted = combine(all_of(shape, dtype))
                same(hvd.allreduce(mine(shape, dtype), op=op), wanted, dtype)


def test_allreduce_in_programs():
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


def test_types_of_64_bits():
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable_x64(True):
        for dtype in WIDE:
            for way in WAYS.values():
                x = jnp.asarray(values_of(hvd.rank(), (5,)), dtype)
                same(way(lambda x: hvd.allreduce(x, op=hvd.Sum))(x), all_of((5,)).sum(0), dtype)


def test_trees_and_groups():
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
            [mine((hvd.size(), 3)), mine((2 * hvd.size(),))]
        )
        same(first, all_of((hvd.size(), 3)).sum(0)[hvd.rank() : hvd.rank() + 1])
        same(second, all_of((2 * hvd.size(),)).sum(0)[2 * hvd.rank() : 2 * hvd.rank() + 2])
        assert way(hvd.grouped_allreduce)([]) == [] and way(hvd.allreduce)({}) == {}
    expect(ValueError, lambda: hvd.grouped_allreduce(mine((3,))), "takes a list of tensors")


def test_moves():
    """The compiled way is one program with all types, as that of test_allreduce_in_programs()."""

    def moved(pairs):
        return [
            (hvd.allgather(few), hvd.broadcast(few, hvd.size() - 1), hvd.alltoall(many))
            for few, many in pairs
        ]

    pairs = [(mine((2, 3), dtype), mine((2 * hvd.size(), 3), dtype)) for dtype in MOVABLE]
    for way in WAYS.values():
        for dtype, (gathered, sent, exchanged) in zip(MOVABLE, way(moved)(pairs), strict=True):
            rows = all_of((2, 3), dtype)
            back = all_of((2 * hvd.size(), 3), dtype)[:, 2 * hvd.rank() : 2 * hvd.rank() + 2]
            same(gathered, np.concatenate(rows), dtype)
            same(sent, rows[-1], dtype)
            same(exchanged, np.concatenate(back), dtype)


def test_unequal_rows_at_once():
    found = hvd.allgather(mine((hvd.rank() + 1, 3)))
    same(found, np.concatenate([values_of(r, (r + 1, 3)) for r in range(hvd.size())]))
    counts = [r + 1 for r in range(hvd.size())]
    start = sum(counts[: hvd.rank()])
    wanted = [values_of(r, (sum(counts), 2))[start : start + hvd.rank() + 1] for r in range(hvd.size())]
    for splits in (counts, jnp.array(counts)):
        output, received = hvd.alltoall(mine((sum(counts), 2)), splits)
        same(output, np.concatenate(wanted))
        assert received.tolist() == [hvd.rank() + 1] * hvd.size() and received.dtype == jnp.int32
    assert hvd.allgather(jnp.zeros((0, 2))).shape == (0, 2)


@on_jax(2, 3)
def test_reducescatter():
    for rows in (2 * hvd.size(), 2 * hvd.size() + 1):
        first = hvd.rank() * 2 + min(hvd.rank(), rows - 2 * hvd.size())
        last = first + 2 + (rows - 2 * hvd.size() > hvd.rank())
        for way in WAYS.values():
            scattered = way(lambda x: [hvd.reducescatter(x, op=op) for op in COMBINE])(mine((rows, 3)))
            for combine, found in zip(COMBINE.values(), scattered, strict=True):
                same(found, combine(all_of((rows, 3)))[first:last])
    expect(ValueError, lambda: hvd.reducescatter(mine((2,)), op=hvd.Adasum), "has no op Adasum")


def test_factors_and_compression():
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


def test_adasum():
    x = jnp.eye(hvd.size(), 4)[hvd.rank()]  # orthogonal: Adasum is the sum
    for way in WAYS.values():
        same(way(lambda x: hvd.allreduce(x, op=hvd.Adasum))(x), np.eye(hvd.size(), 4).sum(0))
    batch = jnp.stack([x, 2 * x, jnp.ones(4)])  # equal: Adasum is the value
    found = jax.jit(jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Adasum)))(batch)
    wanted = np.eye(hvd.size(), 4).sum(0)
    np.testing.assert_allclose(found, [wanted, 2 * wanted, np.ones(4)], rtol=1e-6)


@on_jax(3)
def test_process_sets():
    pair = hvd.add_process_set([0, 2])
    if hvd.rank() in (0, 2):
        for way in WAYS.values():
            found = way(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=pair))(mine((3,)))
            same(found, all_of((3,), ranks=[0, 2]).sum(0))
            found = way(lambda x: hvd.allgather(x, process_set=pair))(mine((3,)))
            same(found, np.concatenate(all_of((3,), ranks=[0, 2])))
            same(way(lambda x: hvd.broadcast(x, 2, process_set=pair))(mine((3,))), values_of(2, (3,)))
            own = way(lambda x: hvd.reducescatter(x, op=hvd.Sum, process_set=pair))(mine((4,)))
            same(
                own,
                all_of((4,), ranks=[0, 2]).sum(0)[:2]
                if hvd.rank() == 0
                else all_of((4,), ranks=[0, 2]).sum(0)[2:],
            )
    hvd.remove_process_set(pair)
    expect(ValueError, lambda: hvd.allreduce(mine((3,)), process_set=pair), "not been registered")


def test_join():
    if hvd.rank() == 0:
        hvd.allreduce(mine((2,)), name="before_the_last")
    assert hvd.join() in range(hvd.size())
    expect(ValueError, lambda: jax.jit(lambda x: hvd.join() + x)(1), "join() cannot be a part of a compiled")
    expect(ValueError, lambda: jax.jit(lambda x: hvd.barrier() or x)(1), "barrier() cannot be a part")
    hvd.barrier()


def test_parameters_and_objects():
    me = hvd.rank()
    key = jax.random.key(me)
    params = {
        "w": mine((3,)), "n": np.full((2,), me, np.int64), "step": me, "rate": 0.1 * me, "key": key,
        "f": len, "text": "mine", "b": mine((2,), "bfloat16"), "flag": bool(me),
    }  # fmt: skip
    root = hvd.size() - 1
    found = hvd.broadcast_parameters(params, root_rank=root)
    same(found["w"], values_of(root, (3,)))
    same(found["b"], values_of(root, (2,)), "bfloat16")
    assert (np.asarray(found["n"]) == root).all() and found["f"] is len and found["text"] == "mine"
    assert found["step"] == root and found["rate"] == 0.1 * root and found["flag"] is bool(root)
    assert type(found["step"]) is int and type(found["rate"]) is float
    assert (jax.random.key_data(found["key"]) == jax.random.key_data(jax.random.key(root))).all()
    assert hvd.broadcast_parameters({}) == {}
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=root) == {"rank": root}
    assert hvd.allgather_object("a" * hvd.rank()) == ["a" * r for r in range(hvd.size())]


def test_wrong_arguments_fail_everywhere():
    """A mistake of the last rank is an error on all ranks, and says whose mistake it was: at once and while tracing."""
    wrong = [
        (lambda x: hvd.allreduce(x, op=99, name="e0"), "Unknown reduce op"),
        (lambda x: hvd.allreduce(x.astype(bool), name="e0"), "Tensor type bool is not supported"),
        (lambda x: hvd.allreduce("text", name="e0"), ""),
        (lambda x: hvd.allreduce(x, process_set="all", name="e0"), ""),
    ]
    for way in WAYS.values():
        for call, text in wrong:
            if hvd.rank() == hvd.size() - 1:
                expect((ValueError, TypeError), lambda w=way, c=call: w(c)(mine((2,))), text)
            else:
                expect(
                    (hvd.HorovodInternalError, jax.errors.JaxRuntimeError),
                    lambda w=way: jax.block_until_ready(w(lambda x: hvd.allreduce(x, name="e0"))(mine((2,)))),
                    text,
                )


@on_jax(2)
def test_mismatches_name_tensor_and_ranks():
    shape = (2 + (hvd.rank() == 0),)
    for way, kind in ((lambda f: f, hvd.HorovodInternalError), (jax.jit, jax.errors.JaxRuntimeError)):
        call = way(lambda x: hvd.allreduce(x, name="unequal"))
        text = expect(kind, lambda c=call: jax.block_until_ready(c(mine(shape))))
        assert "unequal" in text and "rank 0: " in text and "rank 1: " in text, text
        gather = way(lambda x: hvd.allgather(x, name="rows"))
    rows = expect(
        jax.errors.JaxRuntimeError, lambda: jax.block_until_ready(gather(mine((1 + (hvd.rank() == 0), 2))))
    )
    assert "rows" in rows and "outside of jit" in rows


def test_alltoall_in_programs_needs_equal_shares():
    if hvd.size() > 1:
        expect(ValueError, lambda: jax.jit(hvd.alltoall)(mine((hvd.size() + 1, 2))), "equally many rows")
    expect(
        ValueError,
        lambda: jax.jit(lambda x: hvd.alltoall(x, [1] * hvd.size()))(mine((hvd.size(),))),
        "outside of compiled",
    )


@on_jax(2)
def test_trees_that_differ_are_refused_everywhere():
    odd = hvd.rank() == 1
    for tree, text in (
        # Of the same shapes: without names they would be taken for each other.
        (
            {"a": mine((3,)), "c" if odd else "b": mine((2,))},
            "\"['c']\" is on rank 1, but not on rank 0",
        ),
        ({"a": mine((3,))} if odd else {}, "\"['a']\" is on rank 1, but not on rank 0"),
        ({"n": 1.0 if odd else 1}, "\"['n']\" is () int64 on rank 0, but () float64 on rank 1"),
    ):
        expect(OperationFailedError, lambda tree=tree: hvd.broadcast_parameters(tree), text)
