"""Gradients of the synchronous operations, as torch.autograd.Functions.

The gradient of a named operation is communicated under ``NAME.grad``, that of an unnamed operation without a name. All
ranks must run the backwards of unnamed operations in the same order. Called on autograd's threads.
"""

import torch

from horovod.common.arguments import Average, Sum, op_from
from horovod.common.exports import _basics
from horovod.torch import _async_ops as ops
from horovod.torch import _async_scatter as scatter
from horovod.torch._async_gather import allgather_async, grouped_allgather_async
from horovod.torch._submit import synchronize
from hvd_core._frontend.operations import gradient_name

__all__ = [
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
]


def _average(grad: torch.Tensor, name: str | None, process_set) -> torch.Tensor:
    return HorovodAllreduce.apply(grad.contiguous(), None, name, Average, 1.0, 1.0, process_set)


def _own_rows(gathered: torch.Tensor, sizes: torch.Tensor, process_set) -> torch.Tensor:
    """The rows of `gathered` that this rank has contributed; `sizes` holds dimension 0 of every rank."""
    me = process_set.rank()
    rows = gathered.narrow(0, int(sizes[:me].sum()), int(sizes[me]))
    # A view would keep the rows of all ranks alive. If the program differentiates again, the graph keeps them anyway.
    return rows if torch.is_grad_enabled() else rows.clone()


class HorovodAllreduce(torch.autograd.Function):
    """Allreduce; its gradient is the same allreduce of the incoming gradient."""

    @staticmethod
    def forward(ctx, tensor, average, name, op, prescale_factor, postscale_factor, process_set):
        handle = ops.allreduce_async(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set
        )
        op = op_from(op, average, deprecated=False)
        ctx.arguments = (op, prescale_factor, postscale_factor, process_set)
        ctx.name = name
        return synchronize(handle)

    @staticmethod
    def backward(ctx, grad_output):
        reduced = HorovodAllreduce.apply(
            grad_output.contiguous(), None, gradient_name(ctx.name), *ctx.arguments
        )
        return reduced, None, None, None, None, None, None


class HorovodGroupedAllreduce(torch.autograd.Function):
    """Grouped allreduce; its gradient is the same grouped allreduce of the incoming gradients."""

    @staticmethod
    def forward(ctx, average, name, op, prescale_factor, postscale_factor, process_set, *tensors):
        handle = ops.grouped_allreduce_async(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
        op = op_from(op, average, deprecated=False)
        ctx.arguments = (op, prescale_factor, postscale_factor, process_set)
        ctx.name = name
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx, *grad_outputs):
        grads = [grad.contiguous() for grad in grad_outputs]
        reduced = HorovodGroupedAllreduce.apply(None, gradient_name(ctx.name), *ctx.arguments, *grads)
        return (None, None, None, None, None, None, *reduced)


class HorovodAllgather(torch.autograd.Function):
    """Allgather; its gradient is this rank's rows of the AVERAGE over ranks of the incoming gradient."""

    @staticmethod
    def forward(ctx, tensor, name, process_set):
        handle = allgather_async(tensor, name, process_set)
        ctx.rows = tensor.shape[0] if tensor.dim() else 0
        ctx.name = name
        ctx.process_set = process_set
        return synchronize(handle)

    @staticmethod
    def backward(ctx, grad_output):
        rows = torch.tensor([ctx.rows], dtype=torch.int64)
        sizes = allgather_async(rows, gradient_name(ctx.name, "grad.sizes"), ctx.process_set)
        averaged = _average(grad_output, gradient_name(ctx.name), ctx.process_set)
        return _own_rows(averaged, synchronize(sizes), ctx.process_set), None, None


class HorovodGroupedAllgather(torch.autograd.Function):
    """Grouped allgather; its gradient is as that of HorovodAllgather, with one grouped allreduce."""

    @staticmethod
    def forward(ctx, name, process_set, *tensors):
        handle = grouped_allgather_async(tensors, name, process_set)
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        ctx.name = name
        ctx.process_set = process_set
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx, *grad_outputs):
        rows = torch.tensor([ctx.rows], dtype=torch.int64)
        handle = allgather_async(rows, gradient_name(ctx.name, "grad.sizes"), ctx.process_set)
        grads = [grad.contiguous() for grad in grad_outputs]
        arguments = (Average, 1.0, 1.0, ctx.process_set)
        averaged = HorovodGroupedAllreduce.apply(None, gradient_name(ctx.name), *arguments, *grads)
        sizes = synchronize(handle)
        own = [_own_rows(grad, sizes[:, i], ctx.process_set) for i, grad in enumerate(averaged)]
        return (None, None, *own)


class HorovodBroadcast(torch.autograd.Function):
    """Broadcast; its gradient is the AVERAGE over ranks at the root and zero elsewhere."""

    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.root_rank = root_rank
        ctx.name = name
        ctx.process_set = process_set
        return synchronize(ops.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx, grad_output):
        averaged = _average(grad_output, gradient_name(ctx.name), ctx.process_set)
        if _basics.rank() != ctx.root_rank:
            averaged = averaged * 0
        return averaged, None, None, None


class HorovodAlltoall(torch.autograd.Function):
    """Alltoall; its gradient is the alltoall that sends each row of the incoming gradient back to the rank it came from.

    Returns the output without `splits`, else the pair (output, received splits), as the public function does.
    """

    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        ctx.name = name
        ctx.process_set = process_set
        output, ctx.received = synchronize(scatter.alltoall_async(tensor, splits, name, process_set))
        ctx.rows = tensor.shape[0]
        if splits is None:
            return output
        ctx.mark_non_differentiable(ctx.received)
        return output, ctx.received

    @staticmethod
    def backward(ctx, grad_output, *_):
        name = gradient_name(ctx.name)
        grad, _ = HorovodAlltoall.apply(grad_output.contiguous(), ctx.received, name, ctx.process_set)
        unsent = ctx.rows - grad.shape[0]
        if unsent:
            grad = torch.cat([grad, grad.new_zeros((unsent, *grad.shape[1:]))])
        return grad, None, None, None


class _Scattered:
    """The arguments of a reducescatter that its gradient depends on."""

    def __init__(self, name, op, process_set, prescale_factor, postscale_factor):
        self.name = name
        self.op = op
        self.process_set = process_set
        self.factor = prescale_factor * postscale_factor

    def scale(self) -> float:
        """The factor of the gathered gradients."""
        if self.op not in (Average, Sum):
            raise NotImplementedError("Reducescatter is differentiable with hvd.Average and hvd.Sum only.")
        return self.factor * (self.process_set.size() if self.op == Sum else 1)


class HorovodReducescatter(torch.autograd.Function):
    """Reducescatter; its gradient is the allgather of the incoming gradient, times the number of ranks for Sum."""

    @staticmethod
    def forward(ctx, tensor, name, op, process_set, prescale_factor, postscale_factor):
        arguments = (name, op, process_set, prescale_factor, postscale_factor)
        handle = scatter.reducescatter_async(tensor, *arguments)
        ctx.made = _Scattered(*arguments)
        return synchronize(handle)

    @staticmethod
    def backward(ctx, grad_output):
        scale = ctx.made.scale()
        gathered = HorovodAllgather.apply(
            grad_output.contiguous(), gradient_name(ctx.made.name), ctx.made.process_set
        )
        return gathered if scale == 1 else gathered * scale, None, None, None, None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    """Grouped reducescatter; its gradient is as that of HorovodReducescatter, with one grouped allgather."""

    @staticmethod
    def forward(ctx, name, op, process_set, prescale_factor, postscale_factor, *tensors):
        arguments = (name, op, process_set, prescale_factor, postscale_factor)
        handle = scatter.grouped_reducescatter_async(tensors, *arguments)
        ctx.made = _Scattered(*arguments)
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx, *grad_outputs):
        scale = ctx.made.scale()
        grads = [grad.contiguous() for grad in grad_outputs]
        gathered = HorovodGroupedAllgather.apply(gradient_name(ctx.made.name), ctx.made.process_set, *grads)
        if scale != 1:
            gathered = [grad * scale for grad in gathered]
        return (None, None, None, None, None, *gathered)
