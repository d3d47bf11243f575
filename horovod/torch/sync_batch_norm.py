"""SyncBatchNorm: batch normalisation over the batches of all ranks, on any device that torch knows.

One message each way: statistics are gathered in the forward, two sums per channel are reduced in the backward, in
compiled graphs as outside of them. Called like any module, on the thread of the forward; the backward on autograd's
threads.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.common.arguments import Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import _compile
from horovod.torch.mpi_ops import allgather, allreduce

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose statistics are those of the batches of all ranks together.

    Output, running statistics and gradients equal those of torch.nn.BatchNorm in one process that has the whole
    batch; as with any layer, gradients of `weight` and `bias` are this rank's part, which DistributedOptimizer
    reduces. The ranks' batches may differ in length, and in everything but the number of channels; a rank may have an
    empty one. Statistics of float16 and bfloat16 are computed and sent in float32.

    All ranks must call the layers of a model in the same order. In evaluation nothing is sent, unless
    `track_running_stats` is False: then evaluation uses the batches' statistics too, and all ranks must evaluate.

    Args:
        num_features: channels, which are dimension 1 of the input.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None: their plain average.
        affine: whether there are a learnt `weight` and `bias`, of shape (num_features,).
        track_running_stats: whether there are running statistics, for evaluation.
        process_set: the ranks that take part; on others it is an ordinary batch normalisation.

    Shape:
        Input and output: (batch, num_features, ...) of two dimensions or more, float16, bfloat16, float32 or float64.

    Raises (from the forward):
        ValueError: the input has less than two dimensions or another number of channels, or all ranks together
            have one value per channel in training, or the process set is not registered (members or not).
        HorovodInternalError: ranks disagree, or a rank is gone.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        **factory: Any,  # device and dtype
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **factory)
        self.process_set = process_set

    def __getstate__(self) -> dict[str, Any]:
        # Models are pickled and copied; the global process set belongs to the job, and not to the model.
        state = self.__dict__.copy()
        if self.process_set is global_process_set:
            del state["process_set"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # of PyTorch
        self.__dict__.setdefault("process_set", global_process_set)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"SyncBatchNorm expects an input of at least 2 dimensions, but found {input.dim()}."
            )
        if input.size(1) != self.num_features:
            raise ValueError(
                f"SyncBatchNorm was made for {self.num_features} channels, but dimension 1 of the input "
                f"{tuple(input.shape)} is {input.size(1)}."
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise `input`, of shape (batch, num_features, ...), and update the running statistics in training."""
        self._check_input_dim(input)
        of_batch = self.training or (self.running_mean is None and self.running_var is None)
        if of_batch and self.process_set.process_set_id is None:
            # Also on ranks that are not members, so that all ranks stop.
            raise ValueError(
                f"SyncBatchNorm: its process set does not exist, or has not been registered: {self.process_set}. "
                "Give it to hvd.init(process_sets=[...]) or to hvd.add_process_set() before training."
            )
        factor = 0.0 if self.momentum is None else self.momentum
        training_stats = self.training and self.track_running_stats
        if training_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        running = (self.running_mean, self.running_var) if not of_batch or training_stats else (None, None)
        if not of_batch or not self.process_set.included() or self.process_set.size() == 1:
            return F.batch_norm(input, *running, self.weight, self.bias, of_batch, factor, self.eps)
        normalise: Callable[..., torch.Tensor] = _SyncBatchNorm.apply
        return normalise(input, self.weight, self.bias, *running, self.eps, factor, self.process_set)


def _mean_and_variance(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        # The first step of torch's own batch normalisation: three times as fast as var_mean.
        return torch.batch_norm_update_stats(input, None, None, 0.0)
    except NotImplementedError:  # some devices do not have it
        dims = [d for d in range(input.dim()) if d != 1]
        variance, mean = torch.var_mean(input, dims, correction=0)
        return mean, variance


def _statistics(input: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One row: values per channel, the channels' means, their sums of squared deviations."""
    channels = input.size(1)
    row = torch.zeros(1, 1 + 2 * channels, dtype=dtype, device=input.device)
    if input.numel():
        count = input.numel() // channels
        mean, variance = _mean_and_variance(input.to(dtype))
        row[0, 0] = count
        row[0, 1 : 1 + channels] = mean
        # Detached for compilers of PyTorch 2.4, which see gradients to compute where autograd sees none.
        torch.mul(variance.detach(), count, out=row[0, 1 + channels :])
    return row


def _combine(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count, means and variances (biased) of all batches together, from the rows of the ranks.

    Deviations are taken from the means, as the difference of large sums of squares would lose its digits.
    """
    channels = rows.size(1) // 2
    counts, means, squares = torch.split(rows, [1, channels, channels], dim=1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    return total, mean, variance


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        eps: float,
        factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        dtype = torch.promote_types(input.dtype, torch.float32)
        channels = input.size(1)
        # With the size in the name, a name keeps its signature, and the ranks agree on it once.
        name = f"sync_batch_norm.forward.{channels}"
        mine = _statistics(input, dtype)
        if _compile.tracing():
            rows = _compile.allgather_known(mine, process_set.size() or 1, name, process_set)
        else:
            rows = allgather(mine, name=name, process_set=process_set)
        total, mean, variance = _combine(rows)
        # The total is read only if it may be too small: reading makes a device wait and ends a compiled graph.
        values = 2 if input.numel() >= 2 * channels > 0 else float(total)
        if values == 1:
            raise ValueError(
                "SyncBatchNorm expects more than 1 value per channel when training, but all ranks together have one "
                f"(input of shape {tuple(input.shape)})."
            )
        if running_mean is not None and running_var is not None and values:
            running_mean.lerp_(mean.to(running_mean.dtype), factor)
            running_var.lerp_((variance * (total / (total - 1))).to(running_var.dtype), factor)
        ctx.eps, ctx.process_set = eps, process_set
        ctx.save_for_backward(input, weight, mean, variance, total)
        if not input.numel():
            return torch.empty_like(input)
        weight = None if weight is None else weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        return torch.batch_norm(
            input, weight, bias, mean, variance, False, 0.0, eps, torch.backends.cudnn.enabled
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        # Read once: a checkpoint returns the tensors that it has computed anew a single time.
        saved = input, weight, mean, variance, _ = ctx.saved_tensors
        dtype, channels = mean.dtype, input.size(1)
        sums = torch.zeros(2, channels, dtype=dtype, device=input.device)  # of grads, of grads * normalised
        if input.numel():
            # The gradients of the parameters of a normalisation by given statistics are just these sums.
            # CUDA's kernel reads them from the arguments of a batch's own statistics, the CPU's from the running ones.
            ones, scale = torch.ones_like(mean), (variance + ctx.eps).rsqrt()
            _, products, plain = torch.ops.aten.native_batch_norm_backward(
                grad_output, input, ones, mean, variance, mean, scale, False, ctx.eps, [False, True, True]
            )
            sums[0], sums[1] = plain, products
        grad_weight = grad_bias = grad_input = None
        if ctx.needs_input_grad[1]:
            grad_weight = sums[1].to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = sums[0].to(weight.dtype)
        if ctx.needs_input_grad[0]:
            name = f"sync_batch_norm.backward.{channels}"
            summed = allreduce(sums, name=name, op=Sum, process_set=ctx.process_set)
            grad_input = _grad_input(ctx, grad_output, summed, *saved)
        return grad_input, grad_weight, grad_bias, None, None, None, None, None


def _grad_input(
    ctx: Any,
    grad_output: torch.Tensor,
    sums: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    total: torch.Tensor,
) -> torch.Tensor:
    """(grad - mean of grads - normalised input * mean of their products) * weight / deviation."""
    if not input.numel():
        return torch.zeros_like(input)
    scale = (variance + ctx.eps).rsqrt()
    if weight is not None:
        scale = scale * weight.to(mean.dtype)
    mean_grad, mean_product = sums / total
    # The last two terms are a normalisation with another weight and bias, which torch does in one pass.
    rest = torch.batch_norm(
        input.to(mean.dtype), -scale * mean_product, -scale * mean_grad, mean, variance, False, 0.0, ctx.eps,
        torch.backends.cudnn.enabled,
    )  # fmt: skip
    shape = [1, -1] + [1] * (input.dim() - 2)
    return rest.addcmul_(grad_output.to(mean.dtype), scale.view(shape)).to(input.dtype)
