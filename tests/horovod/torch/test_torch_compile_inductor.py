"""torch.compile with PyTorch's code generator; test_torch_compile.py has what needs none."""

import pytest
import torch

import horovod.torch as hvd
from dynamo_support import breaks, compiled
from test_torch_compile import in_turns, movements, need_effects, outcome, reductions, same, trained
from torch_training import agree, loss_of, sgd, train_alone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.ranks(2, framework="torch", env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}, timeout=880),
]


def test_order_where_one_rank_compiles():
    need_effects()
    # Without _compile._keep_order() inductor moves the third reduction to the front.
    function = compiled(in_turns, "inductor") if hvd.rank() == 0 else in_turns
    x = torch.arange(8.0).requires_grad_()
    function(x).backward()
    alone = torch.arange(8.0).requires_grad_()
    in_turns(alone).backward()
    assert torch.allclose(x.grad, alone.grad)


def test_operations_that_reduce():
    same(outcome(compiled(reductions, "inductor")), outcome(reductions))


def test_operations_that_move():
    # The ranks' graphs differ, in splits and shapes: without effects inductor may order the calls in another way on each.
    need_effects()
    same(outcome(compiled(movements, "inductor")), outcome(movements))


def test_training():
    def make_step(model, optimizer):
        forward = compiled(model, "inductor")

        def step(number):
            optimizer.zero_grad()
            loss_of(forward, number, hvd.rank()).backward()
            optimizer.step()

        return step

    model = trained(make_step)
    assert not breaks(), breaks()
    agree(model, train_alone(sgd), 1e-9)


def test_training_of_compiled_blocks():
    def make_step(model, optimizer):
        forward = torch.nn.Sequential(*(torch.compile(layer, fullgraph=True) for layer in model))

        def step(number):
            optimizer.zero_grad()
            loss_of(forward, number, hvd.rank()).backward()
            optimizer.step()

        return step

    agree(trained(make_step), train_alone(sgd), 1e-9)
