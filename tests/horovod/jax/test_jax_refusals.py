"""A mistake of one rank, and what horovod.jax cannot do, is an error on all ranks."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd
from harness.rank import expect
from horovod.jax import _calls
from hvd_core._frontend.operations import OPERATION_NUMBERS
from jax_support import all_of, mine, on_jax, on_two_devices, same

pytestmark = on_jax(2)

ERRORS = (hvd.HorovodInternalError, jax.errors.JaxRuntimeError)


def fails(mistake, call, kind, *parts):
    """On rank 1 mistake() is an error of class `kind`; on the others call() fails with the same reason."""
    if hvd.rank() == 1:
        expect(kind, mistake, *parts)
    else:
        expect(ERRORS, lambda: jax.block_until_ready(call()), *parts)
    hvd.barrier()


def test_arrays_that_are_gone():
    gone = mine((3,))
    gone.delete()
    x = mine((3,))
    for name in ("gone", None):
        for operation in (hvd.allreduce, hvd.allgather, lambda x, name: hvd.broadcast(x, 0, name)):
            fails(
                lambda f=operation, n=name: f(gone, name=n),
                lambda f=operation, n=name: f(x, name=n),
                RuntimeError,
                "deleted",
            )
    same(hvd.allreduce(x), all_of((3,)).mean(0))


def test_trees_that_are_empty_on_one_rank():
    for call in (hvd.allreduce_gradients, hvd.allreduce):
        if hvd.rank() == 1:
            assert call({}) == {}
        else:
            expect(ERRORS, lambda f=call: f({"a": mine((3,))}), "empty tree")
        hvd.barrier()
    tree = {} if hvd.rank() == 1 else {"a": mine((3,))}
    expect(ERRORS, lambda: hvd.broadcast_parameters(tree), "but not on rank 1")


def test_wrong_options_of_gradients():
    for way in (lambda f: f, jax.jit):
        for wrong in ({"gradient_predivide_factor": -1.0}, {"bucket_bytes": "many"}):
            # The two calls are in one line of this file, which is their name in a program.
            step = lambda x, options: hvd.allreduce_gradients({"a": x}, **options)  # noqa: E731
            fails(
                lambda w=way, o=wrong, f=step: w(lambda x: f(x, o))(mine((3,))),
                lambda w=way, f=step: w(lambda x: f(x, {}))(mine((3,))),
                (ValueError, TypeError),
            )
        group = lambda xs: hvd.grouped_allreduce(xs)  # noqa: E731
        fails(
            lambda w=way: w(lambda x: group(x))(mine((3,))),
            lambda w=way: w(lambda x: group([x]))(mine((3,))),
            ValueError,
            "takes a list of tensors",
        )


def test_programs_on_a_gpu():
    """The handler that is registered for GPUs, in a program on the CPU."""
    target = "hvd_jax_refuse_on_cpu"
    refuse = ctypes.CDLL(str(_calls.PATH)).hvd_jax_refuse
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(refuse), platform="cpu")
    assert _calls.why_callbacks() == ""

    def on_gpu(x):
        attributes = {"op": OPERATION_NUMBERS["allreduce"], "process_set": 0, "reduce_op": 0, "root_rank": -1}
        numbers = {key: np.int32(value) for key, value in attributes.items()}
        factors = {key: np.float64(1) for key in ("prescale", "postscale")}
        call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))
        return call(x, name="on_gpu", **numbers, **factors)

    fails(
        lambda: jax.block_until_ready(jax.jit(on_gpu)(mine((3,)))),
        lambda: jax.jit(lambda x: hvd.allreduce(x, name="on_gpu"))(mine((3,))),
        jax.errors.JaxRuntimeError,
        "on_gpu: horovod.jax works on arrays in host memory",
        "JAX_PLATFORMS=cpu",
    )


@on_two_devices(2)
def test_programs_that_the_compiler_divides():
    """The tracer sees no mesh, and each device calls the handler."""
    assert jax.local_device_count() == 2
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()[:2]), ("d",))
    divided = jax.device_put(
        jnp.arange(8.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    )
    for number in range(20):
        program = jax.jit(lambda x, n=number: hvd.allreduce(x, name=f"divided{n % 2}"))
        expect(
            jax.errors.JaxRuntimeError, lambda f=program: jax.block_until_ready(f(divided)), "several local"
        )
    same(jax.jit(hvd.allreduce)(mine((3,))), all_of((3,)).mean(0))
