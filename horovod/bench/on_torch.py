"""Alternatives on PyTorch's tensors: horovod.torch, and torch.distributed with the backend that it has for the device.

On ranks only, one thread. PyTorch is imported when an alternative is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_core.bench._conductor import Unavailable
from hvd_core.bench.alternative import Alternative, Bound, Call, Place, horovod_call

if TYPE_CHECKING:
    import torch


class _OnTorch(Alternative):
    """Buffers on the rank's device."""

    device: torch.device
    finish: Callable[[], Any]

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import torch

        self.torch = torch
        torch.set_num_threads(1)
        if place.device == "cpu":
            self.device, self.finish = torch.device("cpu"), lambda: None
            return
        module = getattr(torch, place.device, None)
        if module is None or not module.is_available():
            raise Unavailable(f"PyTorch sees no device of the type {place.device} here")
        self.device = torch.device(place.device, place.local_rank % module.device_count())
        module.set_device(self.device.index)
        self.finish = module.synchronize

    @classmethod
    def needs(cls) -> list[tuple[str, str]]:
        return [("torch", "pip install torch")]

    def zeros(self, call: Call, elements: int) -> torch.Tensor:
        return self.torch.zeros(elements, dtype=getattr(self.torch, call.dtype), device=self.device)

    def bound(
        self, run: Callable[[], object], sent: torch.Tensor, result: Callable[[], torch.Tensor]
    ) -> Bound:
        def fill(values: np.ndarray) -> None:
            sent.copy_(self.torch.from_numpy(values))

        return Bound(run, fill, lambda: _host_array(result()), self.finish)


def _host_array(tensor: torch.Tensor) -> np.ndarray:
    import torch

    tensor = tensor.detach().cpu()
    array: np.ndarray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


class HorovodTorch(_OnTorch):
    """horovod.torch, as a training script calls it."""

    title = "horovod.torch"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import horovod.torch as hvd

        hvd.init()
        self.hvd: Any = hvd

    def bind(self, call: Call) -> Bound:
        tensor = self.zeros(call, call.sent(self.place.size))
        once = horovod_call(self.hvd, call, tensor)
        kept = [tensor]

        def run() -> None:
            kept[0] = once()

        return self.bound(run, tensor, lambda: kept[0])

    def barrier(self) -> None:
        self.hvd.barrier()

    def close(self) -> None:
        self.hvd.shutdown()


class TorchDistributed(_OnTorch):
    """torch.distributed: Gloo for host memory, the vendor's library for a device."""

    title: str = "torch.distributed"
    launcher = ""
    over_backends = False

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import torch.distributed as dist

        backend = dist.Backend.default_device_backend_map.get(place.device)
        if backend is None:
            raise Unavailable(f"torch.distributed has no backend for the device type {place.device}")
        self.dist: Any = dist
        self.title = f"torch.distributed, {backend}"
        dist.init_process_group(backend, store=self._store(), rank=place.rank, world_size=place.size)
        ops = dist.ReduceOp
        self.ops: dict[str, Any] = {
            "sum": ops.SUM,
            "prod": ops.PRODUCT,
            "min": ops.MIN,
            "max": ops.MAX,
            "avg": ops.AVG,
        }

    def _store(self) -> Any:
        dist, place = self.dist, self.place
        if place.folder is not None:
            return dist.FileStore(os.path.join(place.folder, "torch-store"), place.size)
        import socket

        def store(host: str, port: int, first: bool) -> Any:
            return dist.TCPStore(host, port, place.size, is_master=first, wait_for_workers=False)

        exchange = place.from_root
        assert exchange is not None  # where there is no folder
        if place.rank == 0:
            sent = b""
            try:
                mine = store(socket.gethostname(), 0, True)
                sent = f"{socket.gethostname()} {mine.port}".encode()
            finally:
                exchange(sent)  # the other ranks wait for it, also if there is no store
            return mine
        address = exchange(b"").decode()
        if not address:
            raise Unavailable("rank 0 has no store for torch.distributed")
        host, port = address.split()
        return store(host, int(port), False)

    def bind(self, call: Call) -> Bound:
        dist, size, op = self.dist, self.place.size, self.ops.get(call.op)
        if call.op == "avg" and self.device.type == "cpu":
            raise Unavailable("Gloo has no average")
        whole = self.zeros(call, call.elements)
        if call.collective in ("allreduce", "broadcast"):
            if not call.in_place:
                raise Unavailable("torch.distributed does it in place only")
            run = (
                partial(dist.all_reduce, whole, op)
                if call.collective == "allreduce"
                else partial(dist.broadcast, whole, call.root)
            )
            return self.bound(run, whole, lambda: whole)
        if call.in_place:
            raise Unavailable("not measured in place")
        sent = self.zeros(call, call.sent(size))
        got = self.zeros(call, call.elements // size) if call.collective == "reducescatter" else whole
        run = {
            "allgather": partial(dist.all_gather_into_tensor, got, sent),
            "alltoall": partial(dist.all_to_all_single, got, sent),
            "reducescatter": partial(dist.reduce_scatter_tensor, got, sent, op),
        }[call.collective]
        return self.bound(run, sent, lambda: got)

    def barrier(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        self.dist.destroy_process_group()
