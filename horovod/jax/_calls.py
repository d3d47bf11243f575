"""One collective on JAX's arrays: immediately on values, or as a part of a program that is being traced.

On values the engine reads the arrays' memory, and the result is there on return. In a program the operation is a call of
the library's handler, which XLA runs as soon as its inputs are there. Any thread.
"""

import ctypes
import functools
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hvd_core
from horovod.common.arguments import Average, Sum
from horovod.common.basics import engine, runtime
from horovod.common.exceptions import JobEndedError
from horovod.jax._trace import is_traced
from hvd_core._bootstrap.driver_channel import channel
from hvd_core._frontend.operations import (
    ENGINE_NUMBERS,
    MOVABLE,
    OPERATION_NUMBERS,
    REDUCIBLE,
    Adasum,
    request_name,
    scattered_rows,
    unsupported_text,
)
from hvd_core._runtime import current_job
from hvd_core._runtime.failures import report_failure

# Loads the handlers of compiled programs from ``lib/libhvd_jax.so`` and registers them with JAX.
#
# The library is not compiled against jaxlib. Before the first program uses it, a probe shows whether the two understand
# each other; otherwise operations in compiled programs are callbacks to Python, with one warning. Any thread.

PATH = Path(__file__).parent / "lib" / "libhvd_jax.so"
TARGET = "hvd_jax_collective"

_log = logging.getLogger("horovod")
_once = threading.Lock()

# The attributes of a call, see native/frame.h.
_PROBE = {
    "name": "probe",
    **{key: np.int32(0) for key in ("op", "process_set", "reduce_op", "root_rank")},
    **{key: np.float64(1) for key in ("prescale", "postscale")},
}


def _load() -> None:
    """Load the library and register its handlers. Raises ImportError; the text says why the library cannot be used."""
    if not PATH.exists():
        raise ImportError(
            f"{PATH} is not there. Reinstall hvd-core; in a source checkout: cmake --build BUILD_FOLDER --target hvd_jax"
        )
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        raise ImportError(str(error)) from error
    runtime()  # Raises ImportError if the engine cannot be loaded.
    library.hvd_jax_set_engine.argtypes = [ctypes.c_void_p]
    library.hvd_jax_set_engine(hvd_core.frontend_table())
    for name in (TARGET, "hvd_jax_probe"):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    # JAX chooses the device of a program after it is traced, so a program may come to a GPU unforeseen.
    for platform in ("CUDA", "ROCM"):
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.hvd_jax_refuse), platform=platform)


def _probe() -> None:
    """Run the handler of the probe in a compiled program. Raises the exception that JAX raises."""
    sent = np.arange(5, dtype=np.float32)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        call = jax.ffi.ffi_call("hvd_jax_probe", jax.ShapeDtypeStruct(sent.shape, sent.dtype))
        received = np.asarray(jax.jit(lambda x: call(x, **_PROBE) + 1)(sent))
    if not np.array_equal(received, sent + 1):
        raise ImportError(f"the probe sent {sent} and received {received}")


def why_callbacks() -> str:
    """The reason why compiled programs call Python instead of the library's handlers; "" if they call the handlers.
    Warns at the first call if there is a reason.

    The probe initialises JAX's devices, so it does not run before it is needed.
    """
    with _once:  # handlers are registered once, also by threads that trace at the same time
        return _why_callbacks()


@functools.cache
def _why_callbacks() -> str:
    reasons: list[Exception] = []

    def try_it() -> None:
        try:
            _load()
            _probe()
        except Exception as error:
            reasons.append(error)

    # A separate thread, as this one may be tracing a program.
    thread = threading.Thread(target=try_it, name="horovod.jax probe")
    thread.start()
    thread.join()
    if not reasons:
        return ""
    text = f"{reasons[0]}".strip().splitlines()[0][:300]
    _log.warning(
        "horovod: JAX %s cannot call this library's handlers (%s). In compiled programs operations are callbacks to "
        "Python, which are slower and run one after another. JAX 0.6 and newer call the handlers.",
        jax.__version__,
        text,
    )
    return text


_ADASUM = ENGINE_NUMBERS[Adasum]

# Whether a program was traced whose shapes depend on the number of ranks, or that has the number of a process set.
_depends_on_ranks = False


def _forget_programs() -> None:
    """In the next world of an elastic job there may be another number of ranks."""
    global _depends_on_ranks
    if _depends_on_ranks and channel() is not None:
        jax.clear_caches()
    _depends_on_ranks = False


current_job.call_after_the_job(_forget_programs)


@dataclass(frozen=True)
class Call:
    """An operation on arrays, without the arrays. Hashable, as JAX caches programs by it.

    Attributes:
        operation: "allreduce", "allgather", "broadcast", "alltoall" or "reducescatter".
        name: the request's name without prefix; None outside of programs, where the engine numbers calls.
        process_set: its number. ranks, rank: its size, and this process's place in it.
        reduce_op: the engine's number.
        root_rank: of a broadcast, in the job; of an allreduce, the one rank that gets the result, while the others get
            zeros; -1: all get it.
        splits: of an alltoall outside of programs.
        total_rows: of an allgather in a program; None for equally many on each rank.
    """

    operation: str
    name: str | None
    process_set: int
    ranks: int
    rank: int
    reduce_op: int = 0
    root_rank: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] | None = None
    total_rows: int | None = None

    def as_gradient(self, operation: str | None = None, **changes: Any) -> "Call":
        """The call that computes this call's gradient."""
        name = None if self.name is None else f"{self.name}.grad"
        return replace(self, operation=operation or self.operation, name=name, **changes)


def check(array: Any, operation: str) -> None:
    """Raises ValueError for an array that the operation cannot take, NotImplementedError for one on a device."""
    allowed = REDUCIBLE if operation in ("allreduce", "reducescatter") else MOVABLE
    if array.dtype.name not in allowed:
        raise ValueError(unsupported_text(array.dtype.name, reduces=array.dtype.name in MOVABLE))
    if operation in ("allgather", "alltoall", "reducescatter") and array.ndim == 0:
        raise ValueError(f"{operation} does not support scalar inputs.")
    where = _platform_of(array)
    if where != "cpu":
        raise NotImplementedError(
            f"horovod.jax works on arrays in host memory, but found one on platform {where!r}. Set JAX_PLATFORMS=cpu, or "
            "move the array with jax.device_put(x, jax.devices('cpu')[0]), and compile programs with "
            "jax.default_device(jax.devices('cpu')[0])."
        )


def _platform_of(array: Any) -> str:
    if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
        return str(next(iter(array.devices())).platform)
    device = jax.config.jax_default_device
    if device is not None:
        return str(getattr(device, "platform", device))
    return str(jax.default_backend())


def _perform(call: Call, arrays: Sequence[Any]) -> list[Any]:
    """The results; an alltoall with splits has a second one, the rows that each rank has sent here."""
    if is_traced(arrays):
        with _reported(call):  # the other ranks wait, or will, when they run their programs
            return _in_program(call, arrays)
    return [jnp.asarray(result) for result in _reduced(call, arrays)]


def _reported(call: Call) -> report_failure:
    of_set = SimpleNamespace(process_set_id=call.process_set)
    return report_failure(call.operation, call.name, of_set, call.operation)


def _in_program(call: Call, arrays: Sequence[Any]) -> list[Any]:
    shapes = [jax.ShapeDtypeStruct(_shape_in_program(call, array), array.dtype) for array in arrays]
    mesh = jax.sharding.get_abstract_mesh() if hasattr(jax.sharding, "get_abstract_mesh") else None
    if mesh is not None and mesh.size > 1 and jax.local_device_count() > 1:
        raise ValueError(
            f"{call.operation} in a program over a mesh of several local devices ({dict(mesh.shape)}). Horovod has one "
            "process for each device: start more processes, and give each one device."
        )
    if call.splits is not None:
        raise ValueError(
            "alltoall takes splits outside of compiled programs only, as shapes are fixed there."
        )
    moves_rows = call.operation in ("allgather", "alltoall", "reducescatter")
    if moves_rows or call.process_set:
        global _depends_on_ranks
        _depends_on_ranks = True
    # Adasum looks at whole arrays. The others work on each element, so that the examples of a batch are one array.
    is_elementwise = not moves_rows and call.reduce_op != _ADASUM
    vmap_method = "broadcast_all" if is_elementwise else "sequential"
    if why_callbacks():
        return list(jax.pure_callback(_Callback(call, shapes), shapes, *arrays, vmap_method=vmap_method))
    return list(
        jax.ffi.ffi_call(TARGET, shapes, vmap_method=vmap_method)(
            *arrays,
            name=call.name,
            op=np.int32(OPERATION_NUMBERS[call.operation]),
            process_set=np.int32(call.process_set),
            reduce_op=np.int32(call.reduce_op),
            root_rank=np.int32(call.root_rank),
            prescale=np.float64(call.prescale),
            postscale=np.float64(call.postscale),
        )
    )


def _shape_in_program(call: Call, array: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = array.shape
    if call.operation == "allgather":
        rows = shape[0] * call.ranks if call.total_rows is None else call.total_rows
        return (rows, *shape[1:])
    if call.operation == "reducescatter":
        return (scattered_rows(shape[0], call.ranks, call.rank), *shape[1:])
    if call.operation == "alltoall" and shape[0] % call.ranks:
        raise ValueError(
            f"alltoall in a compiled program sends equally many rows to each of the {call.ranks} ranks, but the array "
            f"has {shape[0]} rows. Call it outside of jit to pass splits."
        )
    return shape


class _Callback:
    """A function of values for jax.pure_callback."""

    def __init__(self, call: Call, shapes: list[jax.ShapeDtypeStruct]) -> None:
        self._call = call
        self._rows = [shape.shape[:1] for shape in shapes]

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        call = self._call
        try:
            results = _reduced(call, arrays)
        except JobEndedError as error:  # JAX shows the message, which does not name the operation
            raise type(error)(f"{call.name}: {error}") from None
        for result, rows in zip(results, self._rows) if call.operation == "allgather" else ():
            if result.shape[:1] != rows:
                raise ValueError(
                    f"{call.name}: the ranks have {result.shape[0]} rows together, and the compiled program expects "
                    f"{rows[0]}. In compiled programs all ranks must have equally many rows; otherwise call it outside "
                    "of jit."
                )
        return tuple(results)


def _reduced(call: Call, given: Sequence[Any]) -> list[np.ndarray]:
    """The results of _perform() as NumPy arrays. The memory of `given` is read only."""
    core, number, name = engine(), call.process_set, request_name(call.operation, call.name)
    with _reported(call):  # an array may have been donated, or the program that computes it has failed
        arrays = [np.asarray(array) for array in given]
        arrays = [np.ascontiguousarray(array).reshape(array.shape) for array in arrays]
        outputs = _outputs(call, arrays)
    if call.operation == "allreduce":
        factors = (call.prescale, call.postscale)
        core.allreduce(arrays, outputs, name, call.reduce_op, *factors, number, True)
        if call.root_rank not in (-1, current_job.rank()):
            outputs = [np.zeros_like(output) for output in outputs]
        return outputs
    if call.operation == "broadcast":
        core.broadcast(arrays, outputs, call.root_rank, name, number, True)
        return outputs
    if call.operation == "reducescatter":
        handle = core.reducescatter(
            arrays, outputs, name, call.reduce_op, call.prescale, call.postscale, number
        )
    else:
        plain = [a if a.dtype.kind in "biuf" else a.view(f"u{a.dtype.itemsize}") for a in arrays]
        if call.operation == "allgather":
            handle = core.allgather(plain, name, number)
        else:
            handle = core.alltoall(plain, [] if call.splits is None else [list(call.splits)], name, number)
    try:
        core.wait(handle)
        if call.operation != "reducescatter":
            outputs = [core.output_array(handle, i).view(a.dtype) for i, a in enumerate(arrays)]
        if call.splits is not None:
            outputs.append(np.array(core.received_splits(handle, 0), np.int32))
    finally:
        core.release(handle)
    return outputs


def _outputs(call: Call, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """New arrays for the results; none where the engine allocates them."""
    if call.operation in ("allreduce", "broadcast"):
        return [np.empty_like(array) for array in arrays]
    if call.operation == "reducescatter":
        rows = [engine().scattered_rows(array.shape[0], call.process_set) for array in arrays]
        return [np.empty((n, *array.shape[1:]), array.dtype) for n, array in zip(rows, arrays)]
    return []


# The gradients of the operations. Each is again an operation, so that gradients of gradients exist. Any thread.
#
# docs/write-a-front-end.md lists them. Outside of programs, and where no gradient is computed, JAX's rules are bypassed.

_AVERAGE, _SUM = ENGINE_NUMBERS[Average], ENGINE_NUMBERS[Sum]


def collective(call: Call, arrays: list[Any]) -> list[Any]:
    """The results of an operation, which can be differentiated. An alltoall with splits has a second result: the rows
    from each rank."""
    return list(_differentiable(call, *arrays)) if is_traced(arrays) else _perform(call, arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call: Call, *arrays: Any) -> tuple[Any, ...]:
    return tuple(_perform(call, arrays))


def _forward(call: Call, *arrays: Any) -> tuple[Any, ...]:
    rows = tuple(array.shape[0] if array.ndim else 0 for array in arrays)
    results = tuple(collective(call, list(arrays)))  # can be differentiated again
    received = None if call.splits is None else results[-1]
    return results, (rows, received)


def _backward(call: Call, residuals: tuple[Any, ...], incoming: tuple[Any, ...]) -> tuple[Any, ...]:
    rows, received = residuals
    incoming = incoming[: len(rows)]
    # Integers have no gradient: JAX has a type without values for it.
    places = [i for i, g in enumerate(incoming) if g.dtype != jax.dtypes.float0]
    results = list(incoming)
    if places:
        found = _RULES[call.operation](
            call, [incoming[i] for i in places], [rows[i] for i in places], received
        )
        for place, gradient in zip(places, found):
            results[place] = gradient
    return tuple(results)


_differentiable.defvjp(_forward, _backward)


def _of_allreduce(call: Call, incoming: list[Any], rows: list[Any], received: Any) -> list[Any]:
    return collective(call.as_gradient(), incoming)


def _of_broadcast(call: Call, incoming: list[Any], rows: list[Any], received: Any) -> list[Any]:
    # The zeros of the other ranks are made by the call: of zeros in the program the compiler would see that the call's
    # result is not used, and leave it out.
    return collective(call.as_gradient("allreduce", reduce_op=_AVERAGE), incoming)


def _of_allgather(call: Call, incoming: list[Any], rows: list[Any], received: Any) -> list[Any]:
    if is_traced(incoming):  # equally many rows on all ranks
        return collective(call.as_gradient("reducescatter", reduce_op=_AVERAGE, total_rows=None), incoming)
    averages = collective(call.as_gradient("allreduce", reduce_op=_AVERAGE), incoming)
    counts = call.as_gradient()
    counts = counts if counts.name is None else counts.as_gradient()
    (before,) = collective(counts, [jnp.asarray([rows], np.int32)])
    starts = np.asarray(before)[: call.rank].sum(axis=0, dtype=np.int64)
    return [average[start : start + n] for average, start, n in zip(averages, starts, rows)]


def _of_alltoall(call: Call, incoming: list[Any], rows: list[Any], received: Any) -> list[Any]:
    splits = None if received is None else tuple(np.asarray(received).tolist())
    sent_back = collective(call.as_gradient(splits=splits), incoming)[:1]
    missing = rows[0] - sent_back[0].shape[0]  # rows that were not sent
    if missing:
        padding = [(0, missing)] + [(0, 0)] * (sent_back[0].ndim - 1)
        return [jnp.pad(sent_back[0], padding)]
    return sent_back


def _of_reducescatter(call: Call, incoming: list[Any], rows: list[Any], received: Any) -> list[Any]:
    factor = call.prescale * call.postscale * (call.ranks if call.reduce_op == _SUM else 1)
    gathered = []
    plain = {"reduce_op": 0, "prescale": 1.0, "postscale": 1.0}
    for i, (gradient, total) in enumerate(zip(incoming, rows)):
        # One by one, as each has its number of rows in a program.
        own = call.as_gradient("allgather", total_rows=total, **plain)
        if len(incoming) > 1 and own.name is not None:
            own = Call(**{**vars(own), "name": f"{own.name}.{i}"})
        gathered += collective(own, [gradient])
    if factor == 1.0:
        return gathered
    return [(g * factor).astype(g.dtype) for g in gathered]


_RULES = {
    "allreduce": _of_allreduce,
    "broadcast": _of_broadcast,
    "allgather": _of_allgather,
    "alltoall": _of_alltoall,
    "reducescatter": _of_reducescatter,
}
