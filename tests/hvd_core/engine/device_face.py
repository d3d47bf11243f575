"""NumPy's verbs on the memory of a fake device (tests/backends/host/fake_device, fake_stream), for the engine's tests.

Arrays are copied to the device on a stream of this program's own, which copies a while after the call. An engine that
does not wait for that stream reads old data, and a host that follows a device's address dies. `DeviceFace` looks like
the NumPy API, so that the matrix of cases runs over it unchanged.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np

import hvd_core as hvd
from expected import BFLOAT16
from hvd_core import _core
from hvd_core._runtime import runtime

NUMBERS = {
    **{
        np.dtype(name): number
        for number, name in enumerate(["uint8", "int8", "uint16", "int16", "int32", "int64"])
    },
    np.dtype("float16"): 6,
    np.dtype("float32"): 7,
    np.dtype("float64"): 8,
    np.dtype("bool"): 9,
    np.dtype("uint32"): 13,
    np.dtype("uint64"): 14,
}
if BFLOAT16:
    NUMBERS[BFLOAT16] = 10
DTYPES = {number: dtype for dtype, number in NUMBERS.items()}
OPS = {hvd.Average: 4, hvd.Sum: 0, hvd.Adasum: 100, hvd.Min: 2, hvd.Max: 3, hvd.Product: 1}


def configure(devices: list[dict], host_routes: dict | None = None) -> None:
    """What init() will tell the engine about devices (engine/python/engine_config.cc says how it is written)."""
    plain = _core.Engine

    def with_devices(config: dict) -> Any:
        config = {**config, "devices": devices, "host_routes": host_routes or {}}
        for device in devices:
            device.setdefault("ordinal", 0)
        return plain(config)

    _core.Engine = with_devices


class Device:
    """The program's side of a device: `library` is the backend, `native`: whether the engine can use its streams."""

    def __init__(self, device_type: str, library: str, native: bool) -> None:
        self.type, self.native, self.ordinal = device_type, native, 0
        self.api = ctypes.CDLL(library)
        self.api.device_alloc.restype = self.api.device_stream.restype = ctypes.c_void_p
        self.api.device_alloc.argtypes = [ctypes.c_uint64]
        self.api.device_free.argtypes = self.api.device_sync.argtypes = self.api.device_idle.argtypes = [
            ctypes.c_void_p
        ]
        self.api.device_copy.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint64]
        self.api.device_hold.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.stream = self.api.device_stream()
        self.held: list[Any] = []
        self.dead: list[int] = []  # memory of arrays that are gone

    def sync(self) -> None:
        self.api.device_sync(self.stream)

    def hold(self) -> Any:
        """The stream stands still from here on; until `.value = 1` of the result."""
        go = ctypes.c_int(0)
        self.held.append(go)
        self.api.device_hold(self.stream, ctypes.byref(go))
        return go

    def free(self, address: int) -> None:
        """Arrays may go, with a cycle that holds them, while the stream is held: it is not waited for then."""
        self.dead.append(address)
        if all(go.value for go in self.held):
            self.sync()
            while self.dead:
                self.api.device_free(self.dead.pop())


class DeviceArray:
    """An array on a device. `from_host` is not there yet when the constructor returns."""

    def __init__(
        self, device: Device, shape: tuple, dtype: np.dtype, from_host: np.ndarray | None = None
    ) -> None:
        self.device, self.shape, self.dtype = device, tuple(shape), np.dtype(dtype)
        self.bytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.address = device.api.device_alloc(max(self.bytes, 1))
        self.kept = None
        if from_host is not None:
            self.kept = np.ascontiguousarray(from_host)
            device.api.device_copy(device.stream, self.address, self.kept.ctypes.data, self.bytes)
            if not device.native:
                device.sync()

    def __del__(self) -> None:
        self.device.free(self.address)

    @property
    def ref(self) -> Any:
        stream = self.device.stream if self.device.native else None
        return _core.TensorRef(
            self.address, list(self.shape), NUMBERS[self.dtype], self.device.type, self.device.ordinal, stream
        )

    def numpy(self) -> np.ndarray:
        """The array, copied back on the stream, after the work that the stream has already."""
        out = np.empty(self.shape, self.dtype)
        self.device.api.device_copy(self.device.stream, out.ctypes.data, self.address, self.bytes)
        self.device.sync()
        return out


class DeviceFace:
    """The blocking verbs; all other attributes are those of the NumPy API."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(hvd, name)

    def put(self, array: Any) -> DeviceArray:
        array = np.asarray(array)
        return DeviceArray(self.device, array.shape, array.dtype, array)

    def empty(self, shape: tuple, dtype: np.dtype) -> DeviceArray:
        return DeviceArray(self.device, shape, dtype)

    def finish(self, handle: int) -> None:
        """Until the stream is behind the operation; nothing waits for the device."""
        engine = runtime.engine()
        engine.wait(handle)
        engine.order_after(handle, self.device.stream if self.device.native else None)

    @contextlib.contextmanager
    def handle(self, handle: int):
        engine = runtime.engine()
        try:
            self.finish(handle)
            yield engine
        finally:
            engine.release(handle)

    def results(self, handle: int, count: int) -> list[np.ndarray]:
        with self.handle(handle) as engine:
            found = []
            for i in range(count):
                shape, number, where = engine.output_info(handle, i)
                assert where == self.device.type, where
                array = self.empty(shape, DTYPES[number])
                engine.copy_output(handle, i, array.ref)
                found.append(array)
        return [array.numpy() for array in found]

    @staticmethod
    def _set(process_set: Any) -> int:
        return 0 if process_set is None else process_set.process_set_id

    def _reduce(self, verb, tensors, shapes, name, op, pre, post, process_set) -> list[np.ndarray]:
        inputs = [self.put(t) for t in tensors]
        outputs = [self.empty(shape, t.dtype) for shape, t in zip(shapes, inputs)]
        references = [x.ref for x in inputs], [x.ref for x in outputs]
        call = getattr(runtime.engine(), verb)
        with self.handle(call(*references, name, OPS[op], pre, post, self._set(process_set))):
            pass
        return [x.numpy() for x in outputs]

    def grouped_allreduce(
        self, tensors, name=None, op=hvd.Average, prescale_factor=1.0, postscale_factor=1.0, process_set=None
    ):
        shapes = [np.shape(t) for t in tensors]
        return self._reduce(
            "allreduce", tensors, shapes, name, op, prescale_factor, postscale_factor, process_set
        )

    def allreduce(self, tensor, *args, **options):
        return self.grouped_allreduce([tensor], *args, **options)[0]

    def allreduce_(
        self, tensor, name=None, op=hvd.Average, prescale_factor=1.0, postscale_factor=1.0, process_set=None
    ):
        own = self.put(tensor)
        ref = own.ref
        engine = runtime.engine()
        engine.allreduce(
            ref, ref, name, OPS[op], prescale_factor, postscale_factor, self._set(process_set), True
        )
        tensor[...] = own.numpy()
        return tensor

    def grouped_reducescatter(
        self, tensors, name=None, op=hvd.Average, prescale_factor=1.0, postscale_factor=1.0, process_set=None
    ):
        engine = runtime.engine()
        number = self._set(process_set)
        shapes = [
            (engine.scattered_rows(np.shape(t)[0], number), *np.shape(t)[1:]) if np.ndim(t) else ()
            for t in tensors
        ]
        return self._reduce(
            "reducescatter", tensors, shapes, name, op, prescale_factor, postscale_factor, process_set
        )

    def reducescatter(self, tensor, *args, **options):
        return self.grouped_reducescatter([tensor], *args, **options)[0]

    def broadcast(self, tensor, root_rank, name=None, process_set=None):
        source = self.put(tensor)
        target = self.empty(source.shape, source.dtype)
        engine = runtime.engine()
        engine.broadcast(source.ref, target.ref, root_rank, name, self._set(process_set), True)
        return target.numpy()

    def broadcast_(self, tensor, root_rank, name=None, process_set=None):
        own = self.put(tensor)
        ref = own.ref
        with self.handle(runtime.engine().broadcast(ref, ref, root_rank, name, self._set(process_set))):
            pass
        tensor[...] = own.numpy()
        return tensor

    def grouped_allgather(self, tensors, name=None, process_set=None):
        inputs = [self.put(t) for t in tensors]
        handle = runtime.engine().allgather([x.ref for x in inputs], name, self._set(process_set))
        return self.results(handle, len(inputs))

    def allgather(self, tensor, name=None, process_set=None):
        return self.grouped_allgather([tensor], name, process_set)[0]

    def alltoall(self, tensor, splits=None, name=None, process_set=None):
        own = self.put(tensor)
        rows = [] if splits is None else [[int(n) for n in splits]]
        engine = runtime.engine()
        handle = engine.alltoall([own.ref], rows, name, self._set(process_set))
        engine.wait(handle)
        received = engine.received_splits(handle, 0)
        output = self.results(handle, 1)[0]
        return output if splits is None else (output, np.array(received, np.int32))
