"""Operations in programs of JAX: transformations, gradients, names, many at the same time."""

import contextlib
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd
from harness.rank import await_told, expect, needs, tell
from horovod.jax import _calls
from jax_support import all_of, mine, on_jax, on_two_devices, same, values_of

pytestmark = on_jax(2)


def mean():
    """Of rank + 1."""
    return (hvd.size() + 1) / 2


def test_gradients():
    """Against the rules of docs/write-a-front-end.md, at once and compiled."""
    weights = jnp.asarray(values_of(hvd.rank(), (2 * hvd.size(), 3), seed=1), jnp.float32)
    own = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
    average = all_of((2 * hvd.size(), 3), seed=1).mean(0)
    total = all_of((2 * hvd.size(), 3), seed=1).sum(0)
    x = mine((2 * hvd.size(), 3))
    rows = mine((2, 3))
    last = hvd.size() - 1
    cases = [
        (lambda x: weights * hvd.allreduce(x), x, average),
        (lambda x: weights * hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), x, 0.5 * total),
        (
            lambda x: weights * hvd.broadcast(x, last),
            x,
            average if last == hvd.rank() else np.zeros_like(average),
        ),
        (lambda x: weights * hvd.allgather(x), rows, average[own]),
        (
            lambda x: weights * hvd.alltoall(x),
            x,
            np.concatenate([values_of(r, (2 * hvd.size(), 3), seed=1)[own] for r in range(hvd.size())]),
        ),
        (
            lambda x: weights[:2] * hvd.reducescatter(x),
            x,
            np.concatenate([values_of(r, (2 * hvd.size(), 3), seed=1)[:2] for r in range(hvd.size())]),
        ),
    ]
    values = [value for _, value, _ in cases]

    def gradients(xs):
        return [jax.grad(lambda x, f=f: f(x).sum())(x) for (f, _, _), x in zip(cases, xs)]

    def of_checkpointed(xs):
        return [
            jax.grad(jax.checkpoint(lambda x, f=f: f(jnp.sin(x)).sum()))(x) for (f, _, _), x in zip(cases, xs)
        ]

    # One program with all operations, as compiling takes longer than running.
    for way in (lambda f: f, jax.jit):
        for (_, _, wanted), found in zip(cases, way(gradients)(values), strict=True):
            same(found, wanted)
    for (_, value, wanted), found in zip(cases, jax.jit(of_checkpointed)(values), strict=True):
        np.testing.assert_allclose(found, np.asarray(wanted) * np.cos(value), rtol=1e-5, atol=1e-6)


def test_gradients_of_unequal_rows_at_once():
    rows = sum(r + 1 for r in range(hvd.size()))
    weights = jnp.asarray(values_of(hvd.rank(), (rows, 2), seed=2), jnp.float32)
    found = jax.grad(lambda x: (weights * hvd.allgather(x, name="g")).sum())(mine((hvd.rank() + 1, 2)))
    first = sum(range(1, hvd.rank() + 1))
    same(found, all_of((rows, 2), seed=2).mean(0)[first : first + hvd.rank() + 1])
    splits = [1] + [0] * (hvd.size() - 1)  # one row to rank 0; the others are not sent
    found = jax.grad(lambda x: (2.0 * hvd.alltoall(x, splits)[0]).sum())(mine((3, 2)))
    same(found, np.array([[2.0, 2], [0, 0], [0, 0]]))


def test_gradients_of_gradients_and_mixed_trees():
    f = lambda x: (hvd.allreduce(x, op=hvd.Sum) ** 3).sum()  # noqa: E731
    found = jax.jit(jax.grad(lambda x: jax.grad(f)(x).sum()))(jnp.full(3, hvd.rank() + 1.0))
    total = hvd.size() * mean()
    np.testing.assert_allclose(found, np.full(3, 6 * total * hvd.size() * hvd.size()), rtol=1e-5)

    def mixed(x, n):
        reduced = hvd.allreduce({"x": x, "n": n}, op=hvd.Sum)
        return (reduced["x"] * reduced["n"]).sum()

    found = jax.jit(jax.grad(mixed))(jnp.ones(2), jnp.full(2, hvd.rank(), jnp.int32))
    np.testing.assert_allclose(found, np.full(2, hvd.size() * sum(range(hvd.size()))))


def test_vmap_scan_and_loops():
    batch = jnp.arange(6.0).reshape(3, 2) + hvd.rank()
    wanted = np.arange(6.0).reshape(3, 2) + mean() - 1

    def mapped(x):
        once, twice = jax.vmap(hvd.allreduce)(x), jax.vmap(jax.vmap(hvd.allreduce))(x)
        return once, twice, jax.vmap(jax.grad(lambda x: hvd.allreduce(x).sum()))(x)

    for way in (lambda f: f, jax.jit):
        once, twice, slopes = way(mapped)(batch)
        same(once, wanted)
        same(twice, wanted)
        np.testing.assert_allclose(slopes, np.ones((3, 2)))
    wanted_rows = np.stack(
        [np.concatenate([batch[i, :, None] - hvd.rank() + r for r in range(hvd.size())]) for i in range(3)]
    )
    along = jax.grad(lambda x: jax.lax.scan(lambda c, w: (hvd.allreduce(c * w), c), x, jnp.ones(4))[0].sum())

    @jax.jit  # few programs, as compiling takes longer than running
    def more_of_vmap(batch, y):
        mixed = jax.vmap(lambda x, y: hvd.grouped_allreduce([x, y]), in_axes=(0, None))(batch, y)
        return jax.vmap(hvd.allgather)(batch[:, :, None]), mixed[0]

    gathered, mixed = more_of_vmap(batch, np.ones(2, np.float32))
    same(gathered, wanted_rows)
    same(mixed, wanted)

    @jax.jit
    def one_loop_after_the_other(x):
        scanned, _ = jax.lax.scan(lambda c, _: (hvd.allreduce(c), None), x, None, length=20)
        counted = jax.lax.fori_loop(0, 5, lambda i, c: hvd.allreduce(c) + 1, scanned)
        until = jax.lax.while_loop(lambda c: c[0] < 9, lambda c: hvd.allreduce(c) + 1, counted)
        return scanned, counted, until, jax.lax.cond(until[0] > 8, hvd.allreduce, lambda x: x, x)

    scanned, counted, until, taken = one_loop_after_the_other(np.full(3, hvd.rank(), np.float32))
    same(scanned, np.full(3, mean() - 1))
    same(counted, np.full(3, mean() + 4))
    same(until, np.full(3, 9 + mean() % 1))
    same(taken, scanned)
    np.testing.assert_allclose(jax.jit(along)(np.ones(2, np.float32)), np.ones(2), rtol=1e-6)


def test_versions_with_handlers():
    has_them = not _calls.why_callbacks()
    assert has_them == (tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 6))


@needs(lambda: bool(_calls.why_callbacks()), "this JAX has handlers")
def test_versions_without_handlers_warn_once():
    _calls._why_callbacks.cache_clear()
    with capture_log() as said:
        for op in (hvd.Sum, hvd.Average):
            jax.block_until_ready(jax.jit(lambda x, op=op: hvd.allreduce(x, op=op))(mine((3,))))
    assert len(said) == 1 and "operations are callbacks to Python" in said[0], said


@contextlib.contextmanager
def capture_log():
    """The texts of the records that the library logs meanwhile."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("horovod").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("horovod").removeHandler(handler)


def test_donated_buffers():
    step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum) / hvd.size(), donate_argnums=0)
    x = mine((1000,))
    for _ in range(10):
        x = step(x)
    same(x, all_of((1000,)).mean(0))


def test_many_calls_of_one_program_in_flight():
    f = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    results = [f(jnp.full(1000, float(i + hvd.rank()))) for i in range(50)]
    for i, result in enumerate(results):
        same(result, np.full(1000, hvd.size() * (i + mean() - 1)))


def test_ranks_trace_in_different_order():
    """Named operations that do not depend on each other, in another order on each rank."""
    names = [f"o{i}" for i in range(30)]
    order = names if hvd.rank() % 2 == 0 else names[::-1]
    f = jax.jit(lambda x: {n: hvd.allreduce(x + int(n[1:]), name=n, op=hvd.Sum) for n in order})
    found = f(jnp.zeros(2000))
    for name in names:
        same(found[name], np.full(2000, hvd.size() * float(name[1:])))


def names_say_where_the_call_is(lowered):
    if not _calls.why_callbacks():  # a callback's name is not in the program's text
        assert "test_jax_programs.py:" in lowered.as_text()


def test_names_agree_although_a_rank_traces_more():
    """Unnamed operations, after one rank alone has traced other programs and this one in another shape."""

    def step(x):
        for _ in range(3):
            x = hvd.allreduce(x) + 1
        return x + sum(hvd.allreduce(x * k) for k in range(3))

    if hvd.rank() == 0:
        jax.jit(lambda x: hvd.allreduce(hvd.allreduce(x))).lower(jnp.ones(7))
        jax.jit(step).lower(jnp.ones((5, 5)))
        jax.eval_shape(step, jnp.ones(3))
    found = jax.jit(step)(jnp.full(2, hvd.rank() + 1.0))
    same(found, np.full(2, (mean() + 3) * 4))
    names_say_where_the_call_is(jax.jit(step).lower(jnp.ones(2)))


def test_microbatches_have_names_of_their_own():
    """Two gradients of one function in one program do not depend on each other."""

    def step(x):
        gradient = jax.grad(lambda x: (hvd.allreduce(x, op=hvd.Sum) ** 2).sum())
        return gradient(x) + 10 * gradient(2 * x)

    found = jax.jit(step)(jnp.full(3, hvd.rank() + 1.0))
    np.testing.assert_allclose(found, np.full(3, 42 * hvd.size() ** 2 * mean()), rtol=1e-6)


def test_one_name_twice_at_the_same_time_is_refused():
    """A function that is compiled by itself has its names twice when it is called twice, and the names of the program are
    kept. Where the calls meet, that is an error and not a mixture."""
    compiled = jax.jit(lambda x: hvd.allreduce(x, name="twice"))
    x = jnp.full(300_000, hvd.rank() + 1.0)
    for call in (compiled, functools.partial(hvd.allreduce, name="twice")):
        program = jax.jit(lambda x, f=call: (f(x), f(-x)))
        try:
            first, second = jax.block_until_ready(program(x))
            assert (first == mean()).all() and (second == -mean()).all(), "they did not meet"
        except jax.errors.JaxRuntimeError as error:
            assert "twice: two calls of this name run at the same time in one program" in str(error)
        hvd.barrier()


@on_jax(2, 3)
def test_ranks_take_different_branches():
    """Each rank runs another branch. The operations have one name in all branches, by which they meet."""
    x = jnp.full(3, hvd.rank() + 1.0)

    def added(more):
        return lambda x: hvd.allreduce(x + more, op=hvd.Sum, name="in a branch")

    def chosen(x, me):
        return jax.lax.switch(me, [added(float(rank)) for rank in range(hvd.size())], x)

    same(jax.jit(chosen)(x, hvd.rank()), np.full(3, sum(2 * rank + 1 for rank in range(hvd.size()))))

    def either(x, first):
        return jax.lax.cond(first, added(10.0), added(20.0), x)

    total = hvd.size() * mean() + 10 + 20 * (hvd.size() - 1)
    same(jax.jit(either)(x, hvd.rank() == 0), np.full(3, total))
    # Through gradients, whose operation has a name made of the caller's, and in compiled functions within.
    slopes = jax.jit(jax.grad(lambda x, first: either(x, first).sum()))(x, hvd.rank() == 0)
    same(slopes, np.full(3, hvd.size()))
    same(jax.jit(lambda x, first: jax.jit(either)(x, first) + 1)(x, hvd.rank() == 0), np.full(3, total + 1))


def test_a_name_in_loops_and_outside_of_them():
    """In bodies, which run one after another, the name is the program's as well: a rank that does the same steps without
    a loop meets the others."""

    def step(x):
        return hvd.allreduce(x, name="step")

    def in_a_scan(x):
        return jax.lax.scan(lambda x, _: (step(x) + 1, None), x, length=4)[0]

    def in_a_while(x):
        return jax.lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, step(c[1]) + 1), (0, x))[1]

    def one_by_one(x):
        for _ in range(4):
            x = step(x) + 1
        return x

    ways = [in_a_scan, in_a_while, one_by_one]
    for turn in range(3):
        found = jax.jit(ways[(hvd.rank() + turn) % 3])(jnp.full(3, hvd.rank() + 1.0))
        same(found, np.full(3, mean() + 4))


def test_unused_results_are_left_out_everywhere():
    same(jax.jit(lambda x: (hvd.allreduce(x), x + 1)[1])(mine((3,))), values_of(hvd.rank(), (3,)) + 1)


def test_a_result_that_only_one_rank_uses_is_named():
    """The compiler leaves the operation out on the other ranks; when they end the job, the text has the name."""
    f = jax.jit(lambda x: (hvd.allreduce(x, name="metric"), x + 1))
    only = jax.jit(lambda x: (hvd.allreduce(x, name="metric"), x + 1)[1])
    if hvd.rank() == 0:
        tell("begun")
        expect(jax.errors.JaxRuntimeError, lambda: jax.block_until_ready(f(jnp.ones(3))), "metric")
    else:
        jax.block_until_ready(only(jnp.ones(3)))
        await_told("begun")
    hvd.shutdown()


@on_two_devices(2)
def test_a_mesh_of_several_devices_is_refused():
    devices = jax.local_devices()
    assert len(devices) == 2
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    f = lambda x: hvd.allreduce(x, name="mesh")  # noqa: E731
    mapped = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))
    expect(
        ValueError,
        lambda: mapped(jnp.ones(4)),
        "a mesh of several local devices",
        "one process for each device",
    )


def test_partial_functions_and_closures():
    scale = functools.partial(hvd.allreduce, op=hvd.Sum)
    constant = mine((3,))  # a value, in a program
    same(jax.jit(lambda x: scale(constant) + x)(jnp.zeros(3)), all_of((3,)).sum(0))
    same(jax.jit(lambda x: scale(np.ones(3, np.float32)) + x)(jnp.zeros(3)), np.full(3, hvd.size()))


def reduced(x):
    return hvd.allreduce(x)


@jax.jit
def inner(x):
    return reduced(x) + reduced(2 * x)


def test_names_do_not_depend_on_what_a_rank_has_traced_before():
    """JAX uses the trace of a function with a jit of its own again, here one that rank 0 alone has made outside of the
    program, and on another line."""
    step = jax.jit(hvd.value_and_grad(lambda x: (x**2).sum()))
    several = jax.jit(lambda xs: hvd.allreduce_gradients(xs, bucket_bytes=1))
    if hvd.rank() == 0:
        inner.lower(jnp.ones(3))
        step.lower(jnp.ones(3))
        several.lower([jnp.ones(3), jnp.ones(4)])
    x = jnp.full(3, hvd.rank() + 1.0)
    for _ in range(2):
        same(jax.jit(lambda x: inner(reduced(reduced(x))))(x), np.full(3, 3 * mean()))
        same(step(x)[1], np.full(3, 2 * mean()))
        for found in several([x, jnp.full(4, hvd.rank() + 1.0)]):
            same(found, np.full(found.shape, mean()))
    names_say_where_the_call_is(inner.lower(jnp.ones(3)))
