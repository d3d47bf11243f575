"""Checks with PyTorch's code generator, run by tests/harness. ranks_compile.py has the checks without the generator."""

import torch

from dynamo_support import breaks, compiled
from ranks_compile import (
    ME,
    in_turns,
    movements,
    need_effects,
    outcome,
    reductions,
    same,
    trained,
)
from training import agree, loss_of, sgd, train_alone


def check_order_where_one_rank_compiles():
    need_effects()
    # Without _compile._keep_order() inductor moves the third reduction to the front.
    function = compiled(in_turns, "inductor") if ME == 0 else in_turns
    x = torch.arange(8.0).requires_grad_()
    function(x).backward()
    alone = torch.arange(8.0).requires_grad_()
    in_turns(alone).backward()
    assert torch.allclose(x.grad, alone.grad)


def check_operations_that_reduce():
    same(outcome(compiled(reductions, "inductor")), outcome(reductions))


def check_operations_that_move():
    # The ranks' graphs differ, in splits and shapes: without effects inductor may order the calls in another way on each.
    need_effects()
    same(outcome(compiled(movements, "inductor")), outcome(movements))


def check_training():
    def make_step(model, optimizer):
        forward = compiled(model, "inductor")

        def step(number):
            optimizer.zero_grad()
            loss_of(forward, number, ME).backward()
            optimizer.step()

        return step

    model = trained(make_step)
    assert not breaks(), breaks()
    agree(model, train_alone(sgd), 1e-9)


def check_training_of_compiled_blocks():
    def make_step(model, optimizer):
        forward = torch.nn.Sequential(*(torch.compile(layer, fullgraph=True) for layer in model))

        def step(number):
            optimizer.zero_grad()
            loss_of(forward, number, ME).backward()
            optimizer.step()

        return step

    agree(trained(make_step), train_alone(sgd), 1e-9)
