"""Checks of names of the original's optimizer that programs read, and of gradients that a program changes while they are
being reduced; run by tests/harness."""

import copy
import warnings

import pytest
import torch

import horovod.torch as hvd
from harness.rank import needs
from torch_support import raises

pytestmark = pytest.mark.ranks(1, 2, framework="torch")


def model_of(parts=3):
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(parts)))


def wrapped(model, **options):
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(inner, model.named_parameters(), **options)


def backward(model):
    model(torch.full((2, 4), hvd.rank() + 1.0)).square().sum().backward()


# -------------------------------------------------------------------------------------------------------------- names


def test_names_that_programs_read():
    model = model_of()
    groups = [list(model[0].parameters())]
    optimizer = wrapped(
        model,
        gradient_predivide_factor=4.0,
        compression=hvd.Compression.fp16,
        sparse_as_dense=True,
        groups=groups,
    )
    assert optimizer.gradient_predivide_factor == 4.0 and optimizer.sparse_as_dense is True
    assert optimizer._compression is hvd.Compression.fp16 and optimizer._groups == groups
    assert optimizer._requires_update == (set(model.parameters()) if hvd.size() > 1 else set())
    assert optimizer._parameter_names[model[0].weight] == "0.weight"
    plain = wrapped(model_of())
    assert plain.gradient_predivide_factor == 1.0 and plain.sparse_as_dense is False and plain._groups is None
    assert wrapped(model_of(), groups=2)._groups == 2
    for name in ("gradient_predivide_factor", "_compression", "_groups"):
        with raises(AttributeError):
            setattr(plain, name, None)  # it would change nothing


@needs(ranks=2)
def test_a_reduction_that_the_program_starts():
    model = model_of()
    optimizer = wrapped(model, compression=hvd.Compression.fp16)
    weight = model[1].weight
    weight.grad = torch.full_like(weight, hvd.rank() + 1.0)
    handle, context = optimizer._allreduce_grad_async(weight)
    assert context is torch.float32 and hvd.poll(handle) in (True, False)
    assert optimizer._allreduce_grad_async(weight)[0] == handle
    optimizer.synchronize()
    assert weight.grad.unique().tolist() == [(hvd.size() + 1) / 2]
    assert model[0].weight.grad.unique().tolist() == [0.0]
    with raises(ValueError, "does not reduce"):
        optimizer._allreduce_grad_async(torch.nn.Parameter(torch.zeros(1)))
    with optimizer.skip_synchronize():
        optimizer.step()


def test_other_private_names_say_what_took_their_place():
    optimizers = [wrapped(model_of())]
    if hvd.size() > 1:
        optimizers.append(wrapped(model_of(), op=hvd.Adasum))
        assert optimizers[1]._compression is hvd.Compression.none and len(optimizers[1]._requires_update) == 6
        with raises(AttributeError, "'_allreduce_grad_async'", "step()"):
            optimizers[1]._allreduce_grad_async(None)
    for optimizer in optimizers:
        for name in ("_handles", "_grad_accs", "_register_hooks", "_allreduce_delay", "_p_to_group"):
            assert not hasattr(optimizer, name), name
            with raises(AttributeError, f"no attribute '{name}'", "Horovod 0.28", "Here "):
                getattr(optimizer, name)
        for name in ("_no_such_name", "__deepcopy__", "_amp_stash", "_step_supports_amp_scaling"):
            assert not hasattr(optimizer, name), name
        with raises(TypeError, "cannot be copied"):
            copy.deepcopy(optimizer)


def test_an_optimizer_with_a_getattr_of_its_own():
    class Delegating(torch.optim.SGD):
        def __getattr__(self, name):
            if name == "from_elsewhere":
                return 7
            raise AttributeError(name)

    model = model_of()
    optimizer = hvd.DistributedOptimizer(Delegating(model.parameters(), lr=0.1), model.named_parameters())
    assert optimizer.from_elsewhere == 7 and not hasattr(optimizer, "_handles")
    backward(model)
    optimizer.step()


# ------------------------------------------------------------------------------------------------- changed gradients


def warned(function):
    """The texts of the warnings of `function` about changed gradients, and the file of each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [w for w in caught if "optimizer.skip_synchronize()" in str(w.message)]


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


@needs(ranks=2)
def test_a_change_before_the_step_is_noticed_once():
    for options in (
        {},
        {"groups": 1},
        {"compression": hvd.Compression.fp16},
        {"backward_passes_per_step": 2},
    ):
        for change in (
            clip,
            lambda model: model[0].weight.grad.mul_(0.5),
            lambda model: setattr(model[1].bias, "grad", model[1].bias.grad * 2),
        ):
            model = model_of()
            optimizer = wrapped(model, **options)

            def step(
                model=model, optimizer=optimizer, change=change, passes=optimizer.backward_passes_per_step
            ):
                optimizer.zero_grad()
                for _ in range(passes):
                    backward(model)
                change(model)
                optimizer.step()

            (found,) = warned(lambda step=step: [step() for _ in range(3)])
            for part in ("optimizer.synchronize()", "with optimizer.skip_synchronize():", "drift apart"):
                assert part in str(found.message)
            assert found.filename == __file__, found.filename
            hvd.barrier()


@needs(ranks=2)
def test_a_change_before_synchronize_is_noticed():
    model = model_of()
    optimizer = wrapped(model)

    def step():
        backward(model)
        clip(model)
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()

    assert len(warned(step)) == 1
    hvd.barrier()


@needs(ranks=2)
def test_a_scaler_that_steps_before_synchronize_is_noticed_once():
    """Also with a fused optimizer, which unscales by itself; a scaler that is switched off looks at no gradients."""
    for options, enabled in (({}, True), ({"fused": True}, True), ({"fused": True}, False)):
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)  # wraps step()
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=enabled)

        def step():
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                step()
        found = [w for w in caught if "GradScaler.step(optimizer) has looked at" in str(w.message)]
        assert len(found) == enabled, (options, caught)
        for one in found:
            assert "with optimizer.skip_synchronize():" in str(one.message)
            assert one.filename == __file__, one.filename
    hvd.barrier()


def test_no_warning_for_programs_that_are_right():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def plain(model, optimizer):
        backward(model)
        optimizer.step()

    def clipped(model, optimizer):
        backward(model)
        optimizer.synchronize()
        clip(model)
        with optimizer.skip_synchronize():
            optimizer.step()

    def scaled(model, optimizer):
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        clip(model)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()

    def accumulated(model, optimizer):
        optimizer.set_backward_passes_per_step(3)
        for turn in range(3):
            backward(model)
            if turn < 2:  # until the last pass the gradients are this rank's own
                clip(model)
        optimizer.step()
        optimizer.set_backward_passes_per_step(1)

    def accumulated_alone(model, optimizer):
        optimizer.set_backward_passes_per_step(2)
        for _ in range(2):
            backward(model)
        optimizer.step()
        optimizer.set_backward_passes_per_step(1)

    def closure(model, optimizer):
        def loss():
            optimizer.zero_grad()
            value = model(torch.ones(2, 4)).sum()
            value.backward()
            return value

        optimizer.step(loss)

    def hooked(model, optimizer):
        """Hooks of others: before ours, after ours without a change, and in the step."""

        def read(p):
            p.grad.norm()

        handles = [p.register_hook(lambda grad: grad * 0.5) for p in model.parameters()]
        handles += [p.register_post_accumulate_grad_hook(read) for p in model.parameters()]
        handles.append(optimizer.register_step_pre_hook(lambda *_: clip(model)))  # of reduced gradients
        plain(model, optimizer)
        for handle in handles:
            handle.remove()

    def cleared(model, optimizer):
        backward(model)
        model.zero_grad()  # sets them to None: the reduction goes on
        optimizer.step()

    def shared(model, optimizer):
        """The gradients are views of one buffer, which has one count of changes."""
        flat = torch.zeros(sum(p.numel() for p in model.parameters()))
        start = 0
        for p in model.parameters():
            p.grad = flat[start : start + p.numel()].view_as(p)
            start += p.numel()
        plain(model, optimizer)

    for use in (plain, clipped, scaled, accumulated, accumulated_alone, closure, hooked, cleared, shared):
        model = model_of()
        for options in ({}, {"compression": hvd.Compression.bf16}, {"groups": 2}):
            optimizer = wrapped(model, **options)
            for clear in (None, False, True):
                if clear is not None:
                    optimizer.zero_grad(set_to_none=clear)
                found = warned(lambda: use(model, optimizer))
                assert not found, (use.__name__, options, str(found[0].message))
        hvd.barrier()
