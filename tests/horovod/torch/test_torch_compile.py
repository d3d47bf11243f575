"""Checks of operations and of training in compiled functions, run on every rank by tests/harness.

The yardstick is the same function, not compiled. Where one rank compiles and another does not, or compiles something
else, an operation that a compiler removes, merges or moves meets another one of the other rank's, of another shape,
which fails on both. Backends without a code generator: those compile in seconds.
"""

import itertools
import sys

import pytest
import torch
import torch._dynamo as dynamo

import horovod.torch as hvd
from dynamo_support import breaks, compiled
from horovod.torch import _compile, _operations, _reducer
from torch_support import raises, same_everywhere
from torch_training import agree, batch_of, layer_of, loss_of, model_of, sgd, train_alone

pytestmark = pytest.mark.ranks(2, framework="torch", env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})


compiled_forms = torch._C._dynamo.eval_frame._debug_get_cache_entry_list


def leaves():
    x = (
        torch.arange(6 * hvd.size(), dtype=torch.float64).reshape(2 * hvd.size(), 3) / 7 + hvd.rank()
    ).requires_grad_()
    y = (
        torch.arange(4 * (hvd.rank() + 1), dtype=torch.float64).reshape(-1, 2) / 5 - hvd.rank()
    ).requires_grad_()
    return x, y


def outcome(function):
    """Results and gradients of a function of `leaves`, whose results have been weighted."""
    x, y = leaves()
    results = function(x, y)
    loss = sum((r * torch.arange(1.0, r.numel() + 1).reshape(r.shape).to(r.dtype)).sum() for r in results)
    loss.backward()
    return [*(r.detach() for r in results), x.grad, y.grad]


def same(found, wanted):
    assert len(found) == len(wanted)
    for index, (one, other) in enumerate(zip(found, wanted)):
        assert (one is None) == (other is None), f"result {index}"
        if one is not None:
            assert one.dtype == other.dtype and one.shape == other.shape, f"result {index}"
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-12), f"result {index}: {one} and {other}"


def reductions(x, y):
    a = hvd.allreduce(x * 2, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    b = hvd.allreduce(a.t().contiguous(), name="named", compression=hvd.Compression.fp16)
    c, d = hvd.grouped_allreduce([a + 1, x[0]], op=hvd.Average, name="grouped")
    e = hvd.reducescatter(x * x, op=hvd.Sum)
    f, g = hvd.grouped_reducescatter([x + 1, x[: hvd.size() + 1]], name="scattered", prescale_factor=2.0)
    z = x.detach() + hvd.rank()
    hvd.allreduce_(z, op=hvd.Max)
    with torch.no_grad():
        u, v = z + hvd.rank(), z * hvd.rank()
    hvd.grouped_allreduce_([u, v], op=hvd.Sum)
    return a, b.double(), c, d, e, f, g, z * x, (u + v) * y.sum()


def movements(x, y):
    a = hvd.allgather(y.tanh())
    b, c = hvd.grouped_allgather([y, x[:1]], name="gathered")
    d = hvd.broadcast(x + 1, hvd.size() - 1)
    e = hvd.alltoall(x)
    # One row to each rank before this one, two to itself; the rest stays here.
    splits = [1] * hvd.rank() + [2] + [0] * (hvd.size() - hvd.rank() - 1)
    rows = y.repeat(hvd.size(), 1)
    f, received = hvd.alltoall(rows, splits, name="parts")
    g, again = hvd.alltoall(rows * 2, torch.tensor(splits))
    z = x.detach() * (hvd.rank() + 1)
    hvd.broadcast_(z, 0)
    return a, b, c, d, e, f, g, z * x, received.double(), again.double() * y.sum()


def test_operations_that_reduce():
    wanted = outcome(reductions)
    same(outcome(compiled(reductions)), wanted)
    same(outcome(compiled(reductions, "eager", whole=False)), wanted)
    assert not breaks(), breaks()


def test_operations_that_move():
    wanted = outcome(movements)
    same(outcome(compiled(movements)), wanted)
    # Without fullgraph, sizes that only the other ranks know end a graph unless a setting of Dynamo prevents it.
    same(outcome(compiled(movements, "eager", whole=False)), wanted)
    with dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        same(outcome(compiled(movements, "eager", whole=False)), wanted)
    assert not breaks(), breaks()


def test_types_of_splits():
    def exchange(x):
        return hvd.alltoall(x, [1] * hvd.size())[1], hvd.alltoall(
            x, torch.ones(hvd.size(), dtype=torch.int64)
        )[1]

    listed, as_tensor = compiled(exchange)(torch.ones(hvd.size()))
    assert (listed.dtype, as_tensor.dtype) == (torch.int32, torch.int64)
    assert listed.tolist() == as_tensor.tolist() == [1] * hvd.size()


def in_turns(x):
    a = hvd.allreduce(x)
    b = hvd.allreduce(x)  # the same once more
    hvd.allreduce(x[:5])  # the result is not used
    c = hvd.allreduce(x[:2].detach() + 1)  # depends on no other operation
    d = hvd.grouped_allreduce([a[:3] + b[:3], x[:4]])[0]
    e = hvd.allgather(x[: hvd.rank() + 1])
    return d.sum() + c.sum() + (e * e).sum()


def need_effects():
    if not _compile.HAS_EFFECTS:
        import pytest

        pytest.skip("ranks whose graphs differ want ops that are marked effectful: PyTorch 2.11")


def test_nothing_is_removed_merged_or_moved():
    need_effects()
    function = compiled(in_turns) if hvd.rank() == 0 else in_turns
    for _ in range(2):
        x = torch.arange(8.0).requires_grad_()
        function(x).backward()
        alone = torch.arange(8.0).requires_grad_()
        in_turns(alone).backward()
        same([x.grad], [alone.grad])


def test_ranks_that_compile_at_other_times():
    function = compiled(lambda x: hvd.allgather(x * 2).sum() + hvd.allreduce(x[:1]).sum())
    graphs = []
    for step in range(6):
        # Rank 0 sees one shape, the others change theirs and compile again for unknown ones.
        rows = 3 if hvd.rank() == 0 else 3 + hvd.rank() * (step % 4)
        found = function(torch.ones(rows, 2) * (hvd.rank() + 1))
        wanted = (
            sum(2 * 2 * (r + 1) * (3 if r == 0 else 3 + r * (step % 4)) for r in range(hvd.size()))
            + 2 * sum(r + 1 for r in range(hvd.size())) / hvd.size()
        )
        assert abs(found.item() - wanted) < 1e-4, (step, found.item(), wanted)
        graphs.append(dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[-1] == (1 if hvd.rank() == 0 else 2), graphs


def test_names_in_another_order_on_each_rank():
    def forwards(x):
        return hvd.allreduce(x, name="one") + hvd.allreduce(x * 2, name="two")

    def in_the_background(x):
        first = hvd.allreduce_async(x * 2, name="two")
        second = hvd.allreduce_async(x, name="one")
        return hvd.synchronize(first) + hvd.synchronize(second)

    function = compiled(forwards) if hvd.rank() == 0 else in_the_background
    assert torch.allclose(
        function(torch.ones(4) * hvd.rank()), torch.ones(4) * 3 * sum(range(hvd.size())) / hvd.size()
    )


def test_rank_and_size():
    def scaled(x, process_set):
        return x * hvd.size() + hvd.rank() + process_set.size() * 100 + process_set.rank() * 1000

    found = compiled(scaled, "eager")(torch.ones(1), hvd.global_process_set)
    assert found.item() == hvd.size() + hvd.rank() + 100 * hvd.size() + 1000 * hvd.rank()


def test_process_sets():
    def pair(x, process_set):
        return (
            hvd.allreduce(x, op=hvd.Sum, process_set=process_set)
            + hvd.allgather(x, process_set=process_set).sum()
        )

    function = compiled(pair)
    everybody = hvd.add_process_set(list(reversed(range(hvd.size())))) if hvd.size() == 1 else None
    last = hvd.add_process_set([hvd.size() - 1])
    wanted = 2.0 * sum(r + 1 for r in range(hvd.size()))
    assert function(torch.ones(1) * (hvd.rank() + 1), hvd.global_process_set).item() == wanted
    if hvd.rank() == hvd.size() - 1:
        x = torch.ones(1, requires_grad=True)
        result = function(x, last)
        result.backward()
        assert (result.item(), x.grad.item()) == (2.0, 2.0)
    else:
        with raises(ValueError, "not"):
            function(torch.ones(1), last)
    assert everybody is None
    hvd.remove_process_set(last)
    with raises(ValueError, "does not exist, or has not been registered"):
        function(torch.ones(1), last)


def test_errors():
    function = compiled(lambda x: hvd.allreduce(x, name="wrong"))
    with raises(hvd.HorovodInternalError, "shape"):
        function(torch.ones(3 + hvd.rank()))
    assert torch.equal(function(torch.ones(3)), torch.ones(3)), "the name is free again"
    with raises(ValueError, "is not supported"):
        function(torch.ones(3, dtype=torch.complex64))
    with raises(hvd.HorovodInternalError if hvd.rank() else ValueError, "is not supported"):
        function(torch.ones(3, dtype=torch.complex64 if hvd.rank() == 0 else torch.float32))
    with raises(Exception, "supersedes"):
        compiled(lambda x: hvd.allreduce(x, True, op=hvd.Sum), whole=False)(torch.ones(3))


def test_what_ends_a_graph():
    def background(x):
        y = x * 2
        handle = hvd.allreduce_async_(y, op=hvd.Sum)
        return hvd.synchronize(handle) + x.sin()

    def objects(x):
        hvd.barrier()
        return x * hvd.broadcast_object({"factor": hvd.rank() + 3}, 0)["factor"]

    x = torch.ones(4)
    in_background, with_objects = compiled(background, whole=False), compiled(objects, whole=False)
    for _ in range(2):
        assert torch.allclose(in_background(x), x * 2 * hvd.size() + x.sin())
        assert torch.equal(with_objects(x), x * 3)


def trained(make_step, new_model=model_of, **options):
    """The model after some steps with DistributedOptimizer; `make_step(model, optimizer)` gives the step."""
    model = new_model(seed=hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        sgd(model.parameters()), named_parameters=model.named_parameters(), **options
    )
    step = make_step(model, optimizer)
    for number in range(4):
        step(number)
    return model


def test_training_a_compiled_model():
    wanted = train_alone(sgd)

    def make(whole, backend):
        def make_step(model, optimizer):
            forward = compiled(model, backend, whole)

            def step(number):
                optimizer.zero_grad()
                loss_of(forward, number, hvd.rank()).backward()
                optimizer.step()

            return step

        return make_step

    forms = ((True, "aot_eager"), (False, "aot_eager"), (True, "eager"))
    for (whole, backend), options in itertools.product(forms, ({}, {"groups": 2})):
        model = trained(make(whole, backend), **options)
        assert not breaks() and dynamo.utils.counters["stats"]["unique_graphs"] == 1
        agree(model, wanted)


def test_sync_batch_norm():
    found = []
    for compiles in (False, True):
        torch.manual_seed(5)
        layers = (torch.nn.Conv2d(3, 4, 3), hvd.SyncBatchNorm(4), torch.nn.ReLU(), hvd.SyncBatchNorm(4))
        model = torch.nn.Sequential(*layers).double()
        run = compiled(model) if compiles else model
        for step in range(2):
            x = torch.randn(
                2 + hvd.rank(), 3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step)
            )
            output = run(x.requires_grad_())
            (output * torch.arange(5.0 - 2)).square().sum().backward()
        found.append([output.detach(), x.grad, *(p.grad for p in model.parameters()), *model.buffers()])
        model.eval()
        found[-1].append(run(x).detach())
    same(found[1], found[0])
    # A rank that compiles and ranks that do not take part in the same operations.
    layer = hvd.SyncBatchNorm(4).double()
    run = compiled(layer) if hvd.rank() == 0 else layer
    run(torch.full((2, 4), float(hvd.rank()), dtype=torch.float64))
    assert torch.allclose(
        layer.running_mean, torch.full((4,), 0.1 * sum(range(hvd.size())) / hvd.size(), dtype=torch.float64)
    )


def test_explain_finds_no_break():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    dynamo.reset()
    found = dynamo.explain(model)(batch_of(0, hvd.rank())[0])
    assert (found.graph_count, found.graph_break_count) == (1, 0), found
    optimizer.zero_grad()


def test_training_where_one_rank_compiles():
    def make_step(model, optimizer):
        forward = compiled(model) if hvd.rank() == 0 else model

        def step(number):
            optimizer.zero_grad()
            loss_of(forward, number, hvd.rank()).backward()
            optimizer.step()

        return step

    agree(trained(make_step), train_alone(sgd))


def test_a_compiled_backward():
    # backward() ends a graph, by PyTorch's decision; what follows must come out right, and Dynamo must not compile
    # what runs in the hooks, which it would do for each parameter.
    def make_step(model, optimizer):
        def forward_and_backward(number):
            optimizer.zero_grad()
            loss = loss_of(model, number, hvd.rank())
            loss.backward()
            return loss * 2

        begin = compiled(forward_and_backward, "eager", whole=False)

        def step(number):
            begin(number)
            optimizer.step()

        return step

    agree(trained(make_step), train_alone(sgd))
    for module in (_reducer, _operations, sys.modules["hvd_core._runtime.runtime"]):
        compiled_here = [code.co_name for code in _compile._codes_of(module) if compiled_forms(code)]
        assert not compiled_here, compiled_here


def test_compiled_autograd():
    autograd = dynamo.compiled_autograd
    enable = autograd._enable if hasattr(autograd, "_enable") else autograd.enable  # the name in PyTorch 2.4

    def make_step(model, optimizer):
        forward = compiled(model, "eager")

        def step(number):
            optimizer.zero_grad()
            with enable(torch.compile(backend="eager")):
                loss_of(forward, number, hvd.rank()).backward()
            optimizer.step()

        return step

    # Each parameter's hook ends a graph of the backward pass, and a graph costs half a second.
    agree(trained(make_step, layer_of), train_alone(sgd, new_model=layer_of))


def test_mixed_precision():
    # The sequence of the documentation, with a gradient that overflows on one rank in the second step.
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    forward = compiled(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=100)
    scales = []
    for step in range(4):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = forward(torch.ones(4, 6) * (hvd.rank() + 1))
            loss = output.float().square().mean() * (
                float("inf") if step == 1 and hvd.rank() == hvd.size() - 1 else 1.0
            )
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved = any(not torch.equal(p, b) for p, b in zip(model.parameters(), before))
        assert moved == (step != 1), step
    assert scales == [256.0, 128.0, 128.0, 128.0], scales
    assert output.dtype == torch.bfloat16
    for index, parameter in enumerate(model.parameters()):
        same_everywhere(parameter, f"mixed.{index}")
