"""Each operation with each element type and each process set, in each way to run a function: at once, compiled, mapped,
in a loop, checkpointed, and its gradient: what the other modules have in some.
On three ranks, as the process sets differ.

One program has all operations and types, since compiling takes longer than running.
"""

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd
from jax_support import COMBINE, MOVABLE, REDUCIBLE, TOLERANCE, WIDE, on_jax, values_of

pytestmark = on_jax(3, slow=True)

_ADASUM = ("float32", "float64")
_STEPS = 2


class Case:
    """An operation, for the members of one process set.

    call(x, set): a function of this rank's array. result(parts), gradient(parts): from all members' arrays or incoming
    gradients in float64, what member `own` gets.
    """

    def __init__(self, call, result, gradient, types):
        self.call, self.result, self.gradient, self.types = call, result, gradient, types


def share(array, own, count):
    rows = len(array) // count
    return array[own * rows : (own + 1) * rows]


def sent_back(parts, own):
    return np.concatenate([share(part, own, len(parts)) for part in parts])


def reduction(op):
    return Case(
        lambda x, s: hvd.allreduce(x, op=op, process_set=s),
        lambda parts, own: COMBINE[op](parts),
        lambda parts, own: COMBINE[op](parts),
        REDUCIBLE + WIDE,
    )


def scattered(op):
    return Case(
        lambda x, s: hvd.reducescatter(x, op=op, process_set=s),
        lambda parts, own: share(COMBINE[op](parts), own, len(parts)),
        lambda parts, own: np.concatenate(parts) * (len(parts) if op == hvd.Sum else 1),
        REDUCIBLE + WIDE,
    )


def cases(members):
    last = members[-1]
    moved = MOVABLE + WIDE
    return {
        **{f"allreduce {op}": reduction(op) for op in COMBINE},
        **{f"reducescatter {op}": scattered(op) for op in COMBINE},
        # Equal arrays: Adasum is the array.
        "adasum": Case(
            lambda x, s: hvd.allreduce(jnp.ones_like(x) + 0 * x, op=hvd.Adasum, process_set=s),
            lambda parts, own: np.ones_like(parts[0]),
            None,
            _ADASUM,
        ),
        "grouped": Case(
            lambda x, s: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum, process_set=s)[1],
            lambda parts, own: 2 * parts.sum(0),
            lambda parts, own: 2 * parts.sum(0),
            REDUCIBLE + WIDE,
        ),
        "allgather": Case(
            lambda x, s: hvd.allgather(x, process_set=s),
            lambda parts, own: np.concatenate(parts),
            lambda parts, own: share(parts.mean(0), own, len(parts)),
            moved,
        ),
        "broadcast": Case(
            lambda x, s: hvd.broadcast(x, last, process_set=s),
            lambda parts, own: parts[-1],
            lambda parts, own: parts.mean(0) * (own == len(parts) - 1),
            moved,
        ),
        "alltoall": Case(lambda x, s: hvd.alltoall(x, process_set=s), sent_back, sent_back, moved),
    }


def each_set():
    """(process set, its ranks) for all sets of which this rank is a member: of all ranks, without the first one, of the
    last one alone."""
    for ranks in ([*range(hvd.size())], [*range(hvd.size())][1:], [hvd.size() - 1]):
        own = hvd.add_process_set(ranks) if len(ranks) < hvd.size() else None
        if hvd.rank() in ranks:
            yield own or hvd.global_process_set, ranks
        if own is not None:
            hvd.remove_process_set(own)


def agree(found, wanted, dtype, what):
    wanted = np.asarray(wanted, np.float64)
    assert found.dtype.name == dtype and found.shape == wanted.shape, (what, found.dtype, found.shape)
    if dtype not in TOLERANCE:
        wanted = np.trunc(wanted)
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    tolerance = 2 * TOLERANCE.get(dtype, 0) * scale
    np.testing.assert_allclose(
        np.asarray(found, np.float64), wanted, rtol=0, atol=tolerance, err_msg=str(what)
    )


def part(rank, members, dtype, seed=0):
    values = values_of(rank, (2 * len(members), 3), seed)
    return values.astype(jnp.dtype(dtype))


def parts(members, dtype, seed=0):
    return np.stack([part(r, members, dtype, seed).astype(np.float64) for r in members])


def run_all(way, seeds=(0,)):
    """Calls `way` with a function of a list of arrays, which returns one result for each operation and type. `way`
    returns a list of results, each for the inputs of these seeds in turn, stacked if there are several."""
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable_x64(True):
        for process_set, members in each_set():
            table = cases(members)
            keys = [(n, t) for n, case in table.items() for t in case.types]
            own = members.index(hvd.rank())

            def all_operations(xs, keys=keys, table=table, process_set=process_set):
                return [table[name].call(x, process_set) for (name, _), x in zip(keys, xs)]

            inputs = [[jnp.asarray(part(hvd.rank(), members, t, seed)) for _, t in keys] for seed in seeds]
            found = way(all_operations, inputs)
            for (name, dtype), result in zip(keys, found):
                wanted = [table[name].result(parts(members, dtype, seed), own) for seed in seeds]
                agree(
                    result,
                    wanted[0] if len(seeds) == 1 else np.stack(wanted),
                    dtype,
                    (name, dtype, members),
                )


def stacked(inputs):
    return [jnp.stack(values) for values in zip(*inputs)]


def test_at_once():
    run_all(lambda f, inputs: f(inputs[0]))


def test_jit():
    run_all(lambda f, inputs: jax.jit(f)(inputs[0]))


def test_vmap():
    run_all(lambda f, inputs: jax.jit(jax.vmap(f))(stacked(inputs)), seeds=range(_STEPS))


def test_scan():
    def scanned(f, inputs):
        return jax.jit(lambda xs: jax.lax.scan(lambda carry, x: (carry, f(x)), 0, xs)[1])(stacked(inputs))

    run_all(scanned, seeds=range(_STEPS))


def test_checkpoint():
    run_all(lambda f, inputs: jax.jit(jax.checkpoint(f))(inputs[0]))


def gradients(compiled, transformed):
    """The gradients of all operations on all types of floats."""
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable_x64(True):
        for process_set, members in each_set():
            table = {name: case for name, case in cases(members).items() if case.gradient is not None}
            keys = [(n, t) for n, case in table.items() for t in case.types if t in TOLERANCE]
            own = members.index(hvd.rank())
            inputs = [jnp.asarray(part(hvd.rank(), members, t)) for _, t in keys]

            def incoming(rank, name, dtype, table=table, members=members, own=own):
                shape = np.shape(table[name].result(parts(members, dtype), own))
                return values_of(rank, shape, seed=1).astype(jnp.dtype(dtype))

            def loss(xs, keys=keys, table=table, process_set=process_set, incoming=incoming):
                results = [
                    transformed(lambda x, n=n: table[n].call(x, process_set))(x)
                    for (n, _), x in zip(keys, xs)
                ]
                weighted = [(r * incoming(hvd.rank(), n, t)).sum() for (n, t), r in zip(keys, results)]
                return sum(w.astype(jnp.float64) for w in weighted)

            gradient = jax.grad(loss)
            found = (jax.jit(gradient) if compiled else gradient)(inputs)
            for (name, dtype), result in zip(keys, found):
                arriving = np.stack([incoming(r, name, dtype).astype(np.float64) for r in members])
                agree(result, table[name].gradient(arriving, own), dtype, (name, dtype, members))


def test_grad_at_once():
    gradients(False, lambda f: f)


def test_grad():
    gradients(True, lambda f: f)


def test_grad_of_checkpoint():
    gradients(True, jax.checkpoint)
