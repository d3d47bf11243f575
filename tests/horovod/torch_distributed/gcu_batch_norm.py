"""The operators of torch.nn.SyncBatchNorm for the simulated device `gcu`: torch has them for GPUs only, and the device
lacks them. They are computed in host memory. Importing the module registers them."""

import torch

_LIBRARY = torch.library.Library("aten", "IMPL", "PrivateUse1")


def _others(x):
    return [d for d in range(x.dim()) if d != 1]


def _along(vector, x):
    return vector.view([-1 if d == 1 else 1 for d in range(x.dim())])


def _on_host(function):
    """The function on copies of its tensors, with results on the device."""

    def called(*arguments):
        device = next(a.device for a in arguments if isinstance(a, torch.Tensor))
        copies = [a.cpu() if isinstance(a, torch.Tensor) else a for a in arguments]
        found = function(*copies)
        for given, copy in zip(arguments, copies):  # running averages
            if isinstance(given, torch.Tensor) and not torch.equal(given.cpu(), copy):
                given.copy_(copy)
        if isinstance(found, tuple):
            return tuple(t if t is None else t.to(device) for t in found)
        return found.to(device)

    return called


def stats(x, eps):
    return x.mean(_others(x)), (x.var(_others(x), unbiased=False) + eps).rsqrt()


def gather_stats(x, mean, invstd, running_mean, running_var, momentum, eps, counts):
    weights = (counts / counts.sum()).view(-1, 1)
    total = (mean * weights).sum(0)
    squares = ((1 / invstd**2 - eps + mean**2) * weights).sum(0)
    variance = squares - total**2
    if running_mean is not None:
        count = counts.sum()
        running_mean.mul_(1 - momentum).add_(momentum * total)
        running_var.mul_(1 - momentum).add_(momentum * variance * count / (count - 1))
    return total, (variance + eps).rsqrt()


def apply(x, weight, bias, mean, invstd, eps):
    return (x - _along(mean, x)) * _along(invstd * weight, x) + _along(bias, x)


def backward_sums(grad, x, mean, invstd, weight, input_g, weight_g, bias_g):
    total = grad.sum(_others(x))
    with_x = (grad * (x - _along(mean, x))).sum(_others(x))
    return total, with_x, with_x * invstd, total


def backward(grad, x, mean, invstd, weight, total, with_x, counts):
    count = counts.sum()
    rest = grad - _along(total / count, x) - (x - _along(mean, x)) * _along(with_x / count * invstd**2, x)
    return rest * _along(invstd * weight, x)


for name, function in (
    ("batch_norm_stats", stats),
    ("batch_norm_gather_stats_with_counts", gather_stats),
    ("batch_norm_elemt", apply),
    ("batch_norm_backward_reduce", backward_sums),
    ("batch_norm_backward_elemt", backward),
):
    _LIBRARY.impl(name, _on_host(function))
