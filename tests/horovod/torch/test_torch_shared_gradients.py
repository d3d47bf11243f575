"""Checks of DistributedOptimizer(gradient_buffers="shared"); run on every rank by tests/harness."""

import gc
import warnings

import pytest
import torch

import horovod.torch as hvd
from harness.rank import needs
from horovod.common.basics import engine
from horovod.torch._operand import BY_ADDRESS
from torch_support import raises, same_everywhere
from torch_training import agree, model_of, sgd, train_alone

pytestmark = pytest.mark.ranks(1, 3, framework="torch")

# They need DLPack's C exchange API, which PyTorch 2.7 does not have.
SERVED = not BY_ADDRESS
WIDTH = 192  # a weight has more bytes than the ranks exchange in one step


def in_place():
    """How many allreduces this process has carried out in windows."""
    return int(engine().backend_fact("shm", "in_place")) if hvd.size() > 1 else 0


class Net(torch.nn.Module):
    """A layer is left out of every second step, on rank 0 alone; one is used twice; one is never used."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(4))

    def forward(self, x, step):
        x = torch.tanh(self.layers[0](torch.tanh(self.layers[0](x))))
        if step % 2 == 0 or hvd.rank() > 0:
            x = self.layers[1](x)
        return self.layers[2](x)


def trained(shared, dtype=torch.float32, set_to_none=True, passes=1, clip=False, **options):
    model = Net(dtype)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01),
        model.named_parameters(),
        backward_passes_per_step=passes,
        gradient_buffers="shared" if shared else None,
        **options,
    )
    generator = torch.Generator().manual_seed(hvd.rank())
    for step in range(4):
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(passes):
            batch = torch.randn(8, WIDTH, generator=generator, dtype=torch.float32).to(dtype)
            model(batch, step).square().mean().backward()
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return model, optimizer


def test_training_is_the_same_to_the_bit():
    for options in (
        {},
        {"set_to_none": False},
        {"passes": 2, "op": hvd.Sum},
        {"passes": 2, "set_to_none": False, "groups": 2},
        {"groups": 2, "clip": True},
        {"clip": True, "set_to_none": False},
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.bf16, "set_to_none": False, "groups": 3},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64, "gradient_predivide_factor": 2.0},
    ):
        plain, _ = trained(False, **options)
        before = in_place()
        model, optimizer = trained(True, **options)
        assert (in_place() > before) == (hvd.size() > 1 and SERVED), options
        for (name, found), wanted in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert torch.equal(found, wanted), (options, name)
            same_everywhere(found, f"shared.{name}")
        del optimizer
        gc.collect()


def test_equals_one_process():
    alone = train_alone(sgd)
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        sgd(model.parameters()), model.named_parameters(), gradient_buffers="shared"
    )
    from torch_training import STEPS, loss_of

    for step in range(STEPS):
        model.zero_grad()  # not the optimizer's
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    agree(model, alone)


@needs(SERVED, "this PyTorch has no DLPack C exchange API, which gradients in shared memory need", ranks=2)
def test_gradients_stay_where_they_are():
    model, optimizer = trained(True)
    homes = [slot.home for slot in optimizer._reducer.slots.values()]
    where = {home.data_ptr() for home in homes}
    assert len(where) == len(homes) == 8
    for set_to_none in (True, False, True):
        optimizer.zero_grad(set_to_none=set_to_none)
        grads = [param.grad for param in model.parameters()]
        assert all(grad is None if set_to_none else not grad.any() for grad in grads)
        model(torch.ones(2, WIDTH), 1).sum().backward()
        optimizer.step()
        assert {param.grad.data_ptr() for param in model.parameters()} == where
    # A gradient changed while it is reduced is noticed, though all lie in one piece of memory.
    optimizer.zero_grad()
    model(torch.ones(2, WIDTH), 1).sum().backward()
    model.layers[2].weight.grad.mul_(1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert ["layers.2.weight" in str(w.message) for w in caught] == [True]
    # They outlive the job and the optimizer.
    kept = model.layers[0].weight.grad
    value = kept.clone()
    del model, optimizer, homes, grads
    gc.collect()
    hvd.shutdown()
    assert torch.equal(kept, value)
    kept.zero_()
    hvd.init()
    kept.fill_(hvd.rank())
    hvd.allreduce_(kept, op=hvd.Sum)
    assert (kept == sum(range(hvd.size()))).all()


def test_amp():
    model = Net(torch.float32)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), gradient_buffers="shared"
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, WIDTH) * (hvd.rank() + 1), step).float().square().mean()
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    for name, param in model.named_parameters():
        assert torch.isfinite(param).all()
        same_everywhere(param, f"amp.{name}")


def test_the_reason_is_told_where_memory_is_not_shared():
    def wrapped(optimizer_of=sgd, module=None, **options):
        model = module or model_of()
        return hvd.DistributedOptimizer(
            optimizer_of(model.parameters()), model.named_parameters(), gradient_buffers="shared", **options
        )

    with raises(ValueError, 'gradient_buffers must be None or "shared"'):
        hvd.DistributedOptimizer(sgd(model_of().parameters()), gradient_buffers="windows")
    other = model_of()
    if hvd.rank() == 0:
        other[0].weight.requires_grad_(False)
    for reason, options in (
        ("reduce different parameters", {"module": other}),
        ("no parameter is a contiguous tensor", {"module": torch.nn.Linear(2, 2).to(torch.complex64)}),
        ("Adasum reduces changes of the weights", {"op": hvd.Adasum}),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            wrapped(**options)
        told = [str(w.message) for w in caught if "gradient_buffers" in str(w.message)]
        if hvd.size() == 1 or hvd.rank() > 0:
            assert not told
        else:
            expected = reason if SERVED or "op" in options else "it needs tensors with DLPack"
            assert len(told) == 1 and expected in told[0], told
