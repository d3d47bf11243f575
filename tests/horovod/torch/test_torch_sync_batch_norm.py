"""Checks of SyncBatchNorm against one process that normalises the whole batch in float64; run by tests/harness."""

import copy
import itertools
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd
from torch_support import raises

pytestmark = pytest.mark.ranks(1, 3, framework="torch")

CHANNELS = 5
PLAIN = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
# Of outputs and input gradients, rounded to their type; statistics are float32 at least.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def parts_of(dims, dtype, seed=0, empty=1):
    """The batch of each rank, of different lengths; that of rank `empty` has no rows."""
    generator = torch.Generator().manual_seed(seed)
    trailing = (CHANNELS, *[3] * (dims - 2))
    lengths = [0 if rank == empty else 4 + rank for rank in range(hvd.size())]
    return [
        (3 + 2 * torch.randn(length, *trailing, generator=generator, dtype=torch.float64)).to(dtype)
        for length in lengths
    ]


def set_parameters(module):
    with torch.no_grad():
        if module.affine:
            module.weight.copy_(torch.arange(CHANNELS) + 0.5)
            module.bias.copy_(torch.arange(CHANNELS))
    return module


def close(found, wanted, tolerance, what):
    assert found.shape == wanted.shape, f"{what}: {found.shape} {wanted.shape}"
    difference = (found.double() - wanted).abs().max().item() if found.numel() else 0.0
    assert difference <= tolerance, f"{what}: {difference:.1e}"


def test_equals_one_process_with_the_whole_batch():
    for dims, dtype, affine, momentum in itertools.product(PLAIN, TOLERANCE, (True, False), (0.1, None)):
        case = f"{dims} dimensions, {dtype}, affine={affine}, momentum={momentum}"
        stats = torch.promote_types(dtype, torch.float32)
        options = {"momentum": momentum, "affine": affine}
        ours = set_parameters(hvd.SyncBatchNorm(CHANNELS, dtype=stats, **options))
        plain = set_parameters(PLAIN[dims](CHANNELS, dtype=torch.float64, **options))
        for step in range(2):
            parts, grads = parts_of(dims, dtype, step), parts_of(dims, dtype, step + 10)
            mine, whole = (
                parts[hvd.rank()].requires_grad_(),
                torch.cat(parts).detach().double().requires_grad_(),
            )
            output, wanted = ours(mine), plain(whole)
            assert output.dtype == dtype, case
            output.backward(grads[hvd.rank()])
            wanted.backward(torch.cat(grads).double())
            lengths = [len(part) for part in parts]
            close(output, wanted.split(lengths)[hvd.rank()], TOLERANCE[dtype], f"output, {case}")
            close(mine.grad, whole.grad.split(lengths)[hvd.rank()], TOLERANCE[dtype], f"gradient, {case}")
            for name, value in plain.named_buffers():
                close(ours.get_buffer(name), value, 1e-5, f"{name}, {case}")
            for name, param in plain.named_parameters():
                grad = hvd.allreduce(ours.get_parameter(name).grad, op=hvd.Sum)
                close(grad, param.grad, 1e-3 if stats is torch.float32 else 1e-10, f"{name}, {case}")
        ours.eval()
        plain.eval()
        # Nothing is sent: the ranks' inputs and steps may differ.
        for _ in range(hvd.rank()):
            close(ours(mine), plain(mine.double()), 2 * TOLERANCE[dtype], f"evaluation, {case}")


def test_layouts_and_large_means():
    generator = torch.Generator().manual_seed(0)
    whole = 1000 + torch.randn(2 * hvd.size(), 4, 6, 6, generator=generator)
    mine = whole[2 * hvd.rank() : 2 * hvd.rank() + 2].to(memory_format=torch.channels_last).requires_grad_()
    output = hvd.SyncBatchNorm(4)(mine)
    assert output.is_contiguous(memory_format=torch.channels_last)
    wanted = torch.nn.BatchNorm2d(4).double()(whole.double())
    close(output, wanted[2 * hvd.rank() : 2 * hvd.rank() + 2], 2e-3, "output")
    hvd.SyncBatchNorm(4)(mine.transpose(2, 3)).sum().backward()
    assert mine.grad.abs().max() < 1e-3


def test_half_precision_parameters():
    for dtype in (torch.float16, torch.bfloat16):
        module = set_parameters(hvd.SyncBatchNorm(CHANNELS)).to(dtype)
        parts = parts_of(4, dtype)
        output = module(parts[hvd.rank()].requires_grad_())
        output.sum().backward()
        plain = set_parameters(torch.nn.BatchNorm2d(CHANNELS)).double()
        wanted = plain(torch.cat(parts).double()).split([len(part) for part in parts])[hvd.rank()]
        close(output, wanted, 8e-2, f"output of {dtype}")
        assert module.weight.grad.dtype == dtype and module.running_mean.dtype == dtype


def test_in_a_checkpoint():
    found = []
    for reentrant in (None, False, True):
        module = set_parameters(hvd.SyncBatchNorm(CHANNELS))
        mine = parts_of(3, torch.float32)[hvd.rank()].requires_grad_()
        output = module(mine) if reentrant is None else checkpoint(module, mine, use_reentrant=reentrant)
        output.pow(3).sum().backward()
        found.append((output.detach(), mine.grad, module.weight.grad))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_without_running_statistics():
    module = hvd.SyncBatchNorm(CHANNELS, track_running_stats=False).double().eval()
    parts = parts_of(3, torch.float64)
    wanted = torch.nn.BatchNorm1d(CHANNELS, track_running_stats=False).double()(torch.cat(parts))
    output = module(parts[hvd.rank()])
    close(output, wanted.split([len(part) for part in parts])[hvd.rank()], 1e-12, "output")
    assert module.running_mean is None and not module.state_dict().keys() & {"running_mean"}


def test_empty_everywhere():
    module = hvd.SyncBatchNorm(CHANNELS)
    mine = torch.empty(0, CHANNELS, 2, requires_grad=True)
    if hvd.size() > 1:
        module(mine).sum().backward()
        assert mine.grad.shape == mine.shape and not module.weight.grad.any()
        assert not module.running_mean.any()


def test_errors():
    module = hvd.SyncBatchNorm(CHANNELS)
    with raises(ValueError, "at least 2 dimensions, but found 1"):
        module(torch.ones(CHANNELS))
    with raises(ValueError, "made for 5 channels", "(2, 4)"):
        module(torch.ones(2, 4))
    with raises(ValueError, "more than 1 value per channel"):
        module(torch.ones(1 if hvd.rank() == 0 else 0, CHANNELS))


def test_copies():
    module = hvd.SyncBatchNorm(CHANNELS)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.process_set is hvd.global_process_set
    own = hvd.ProcessSet([0])
    module = hvd.SyncBatchNorm(CHANNELS, process_set=own)
    assert copy.deepcopy(module).process_set is own and copy.copy(own) is own
    assert pickle.loads(pickle.dumps(hvd.global_process_set)) is hvd.global_process_set
    other = pickle.loads(pickle.dumps(module)).process_set
    assert other is not own and other.ranks == [0] and other.process_set_id is None
    # The set must be registered wherever statistics are computed, also on ranks that are not members.
    for each in (module, copy.deepcopy(module)):
        with raises(ValueError, "SyncBatchNorm", "has not been registered"):
            each(torch.ones(4, CHANNELS))
        assert not each.num_batches_tracked and each.eval()(torch.ones(4, CHANNELS)).shape == (4, CHANNELS)
    assert isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
    plain = torch.nn.BatchNorm2d(CHANNELS)
    module.load_state_dict(plain.state_dict())
