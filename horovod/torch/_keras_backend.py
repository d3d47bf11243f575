"""Keras 3 on PyTorch: its gradients and variables through ``horovod.torch``. See horovod/_keras/backends.py."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import horovod.torch as hvd
from horovod._keras.agreement import SPARSE64
from horovod._keras.backends import Backend, Function
from horovod._keras.options import Options
from horovod.common.arguments import Average
from horovod.common.process_sets import ProcessSet
from horovod.torch._gradients import values_of
from hvd_core._runtime.failures import report_failure, send_failure


class TorchBackend(Backend):
    """torch.Tensor and keras.Variable."""

    batch_prefix = "grouped_allreduce."

    def mode(self) -> str:
        return "eager"  # also under torch.compile, which does not trace our functions

    def identity(self, variable: Any) -> torch.Tensor:
        return variable if isinstance(variable, torch.Tensor) else variable.value

    def is_variable(self, value: Any) -> bool:
        keras = sys.modules["keras"]  # loaded, as it runs on PyTorch
        return isinstance(value, (keras.Variable, torch.nn.Parameter))

    def description_of(self, variable: Any) -> tuple[str, list[int], str]:
        tensor = self.identity(variable)
        name = getattr(variable, "path", None) or getattr(variable, "name", None) or "a tensor"
        return name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")

    def values_of(self, variable: Any) -> np.ndarray | None:
        return values_of(self.identity(variable))

    def gradients(self, loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> list[Any]:
        own = [self.identity(v) for v in variables]
        loss = loss() if callable(loss) and not isinstance(loss, torch.Tensor) else loss
        return list(torch.autograd.grad(loss, own, grad_loss, allow_unused=True))

    def sparse_kind(self, gradient: Any) -> int:
        return SPARSE64 if gradient is not None and gradient.is_sparse else 0

    def dense(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.to_dense()

    def sparse(self, gradient: torch.Tensor, kind: int) -> torch.Tensor:
        return gradient.detach().to_sparse(1)

    def zeros_for(self, variable: Any, kind: int) -> torch.Tensor:
        tensor = self.identity(variable)
        if kind != SPARSE64:
            return torch.zeros_like(tensor, requires_grad=False)
        none = torch.zeros((1, 0), dtype=torch.int64, device=tensor.device)
        rows = torch.zeros((0, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
        return torch.sparse_coo_tensor(none, rows, tensor.shape)

    def scaled(self, gradient: torch.Tensor, factor: float) -> torch.Tensor:
        return gradient * factor

    def nan_unless_finite(self, gradients: list[Any]) -> torch.Tensor:
        values = [g._values() if g.is_sparse else g for g in gradients]
        finite = all(bool(torch.isfinite(v).all()) for v in values)
        return torch.tensor(1.0 if finite else float("nan"), dtype=torch.float32)

    def batches(self, indices: list[int], gradients: list[Any], variables: list[Any]) -> list[list[int]]:
        # All gradients have been computed when the optimizer is called: one operation for each device is fastest.
        of_device: dict[Any, list[int]] = {}
        for index in indices:
            of_device.setdefault(gradients[index].device, []).append(index)
        return list(of_device.values())

    def reduce(
        self,
        batches: list[list[Any]],
        names: list[str],
        variables: list[Any],
        options: Options,
        presence: list[bool] | None,
    ) -> tuple[list[list[Any]], Any]:
        own = {id(self.identity(v).grad) for v in variables}
        submitted: list[tuple[int, list[Any]]] = []
        for tensors, name in zip(batches, names):
            with report_failure("allreduce", f"grouped_allreduce.{name}", options.process_set):
                pairs = [options.compression.compress(t.detach()) for t in tensors]
            sent = [pair[0].contiguous() for pair in pairs]
            # A gradient that autograd has put into .grad is overwritten, as horovod.torch does. Other gradients belong to
            # the caller, and are not, unless the compressed tensor has memory of its own.
            may_overwrite = all(id(t) in own or s.data_ptr() != t.data_ptr() for s, t in zip(sent, tensors))
            if presence is not None and not submitted:
                sent.append(_presence_tensor(presence, sent[0]))
            submit = hvd.grouped_allreduce_async_ if may_overwrite else hvd.grouped_allreduce_async
            handle = submit(
                sent,
                name=name,
                op=options.op,
                prescale_factor=1.0 / options.gradient_predivide_factor,
                postscale_factor=options.gradient_predivide_factor,
                process_set=options.process_set,
            )
            submitted.append((handle, [pair[1] for pair in pairs]))
        received = [hvd.synchronize(handle) for handle, _ in submitted]
        results = [
            [options.compression.decompress(t, c) for t, c in zip(tensors, contexts)]
            for tensors, (_, contexts) in zip(received, submitted)
        ]
        return results, None if presence is None else received[0][-1]

    def any_rank_has(self, presence: torch.Tensor) -> list[bool]:
        return (presence > 0).tolist()

    def reduce_sparse(self, gradient: torch.Tensor, name: str, options: Options) -> torch.Tensor:
        return hvd.sparse_allreduce_async(gradient, name, options.op, process_set=options.process_set)()

    def report(
        self, operation: str, name: str | None, error: BaseException | str, process_set: ProcessSet
    ) -> None:
        send_failure(operation, name, process_set, error, operation)

    def broadcast_variables(
        self,
        variables: Sequence[Any],
        root_rank: int,
        name: str,
        process_set: ProcessSet = hvd.global_process_set,
    ) -> None:
        tensors = [self.identity(v) for v in variables]
        named = [(f"variable.{i}", tensor) for i, tensor in enumerate(tensors)]
        hvd.broadcast_parameters(named, root_rank, name, process_set)

    def copies_of(self, variables: Sequence[Any], earlier: Sequence[Any] | None) -> list[Any]:
        tensors = [self.identity(v).detach() for v in variables]
        if earlier is None or len(earlier) != len(tensors):
            return [tensor.clone() for tensor in tensors]
        return [copy.copy_(tensor) for copy, tensor in zip(earlier, tensors)]

    def assign(self, variables: Sequence[Any], copies: Sequence[Any]) -> None:
        with torch.no_grad():
            for variable, copy in zip(variables, copies):
                self.identity(variable).copy_(copy)

    def allreduce(
        self,
        value: Any,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        compression: Any,
        process_set: ProcessSet,
    ) -> Any:
        sent = self._sent(value, "allreduce", name, process_set)
        return hvd.allreduce(
            sent, None, name, compression, op, prescale_factor, postscale_factor, process_set
        )

    def allgather(self, value: Any, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        return hvd.allgather(self._sent(value, "allgather", name, process_set), name, process_set)

    def broadcast(
        self, value: Any, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        sent = self._sent(value, "broadcast", name, process_set)
        return hvd.broadcast(sent, root_rank, name, process_set)

    def reducescatter(
        self,
        value: Any,
        name: str | None,
        op: int = Average,
        process_set: ProcessSet = hvd.global_process_set,
    ) -> torch.Tensor:
        sent = self._sent(value, "reducescatter", name, process_set)
        return hvd.reducescatter(sent, name=name, op=op, process_set=process_set)

    def _sent(self, value: Any, operation: str, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        with report_failure(operation, name, process_set, operation):
            return _tensor(value)

    def not_rewritten(self, function: Function) -> Function:
        disabled: Callable[..., Any] | None = None
        disable: Callable[..., Any] = torch.compiler.disable

        def call(*args: Any) -> Any:
            nonlocal disabled
            # torch.compiler.disable() loads Dynamo, which takes seconds, also for programs that compile nothing.
            if disabled is None and "torch._dynamo" in sys.modules:
                disabled = disable(function)
            return (disabled or function)(*args)

        call._torchdynamo_disable = True  # type: ignore[attr-defined]  # PyTorch's mark
        wrapped: Any = call
        marked: Function = wrapped
        return marked


def _presence_tensor(presence: list[bool], like: torch.Tensor) -> torch.Tensor:
    if all(presence):  # made on the device, so the host does not wait
        return torch.ones(len(presence), dtype=like.dtype, device=like.device)
    return torch.tensor(presence, dtype=like.dtype, device=like.device)


def _tensor(value: Any) -> torch.Tensor:
    """A keras.Variable, a tensor, an array or a number as a contiguous tensor."""
    if not isinstance(value, torch.Tensor):
        value = getattr(value, "value", value)
    if not isinstance(value, torch.Tensor):
        array = np.asarray(value)
        if array.dtype == np.float64 and not isinstance(value, (np.ndarray, np.generic)):
            array = array.astype(np.float32)  # the framework makes float32 of Python's floats
        value = torch.from_numpy(np.array(array, order="C", copy=True))
    tensor: torch.Tensor = value
    return tensor.detach().contiguous()
