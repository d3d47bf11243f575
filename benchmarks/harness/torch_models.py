"""Models of the benchmarks on PyTorch. Used by ranks, on one thread."""

from __future__ import annotations

import torch


class _Touch(torch.autograd.Function):
    """Hands a number on, and gives the parameter a gradient without computing: one value everywhere."""

    @staticmethod
    def forward(ctx, number, param):
        ctx.shape = param.shape
        return number.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, grad.expand(ctx.shape)


class Shaped(torch.nn.Module):
    """Parameters of given shapes, used one after the other, and next to no computation."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            inputs = _Touch.apply(inputs, part)
        return inputs
