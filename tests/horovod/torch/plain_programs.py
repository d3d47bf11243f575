"""What the programs of programs/ compute, by plain torch in one process. Called by test_torch_programs.py.

The yardstick has the batches of all ranks at once and no Horovod; both compute in float64.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

RANKS = range(2)


def agrees(name, out):
    """Compares the results that the program's rank 0 has saved in the file `out`."""
    path = Path(__file__).with_name("programs") / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"program_{name}", path)
    program = importlib.util.module_from_spec(spec)
    torch.set_default_dtype(torch.float64)
    try:
        spec.loader.exec_module(program)
        globals()[f"check_{name}"](program, torch.load(out, weights_only=True))
    finally:
        torch.set_default_dtype(torch.float32)


def batches_of_all(dataset, epoch, batch_size):
    """For each step the batches of the ranks, as the program's samplers and loaders return them."""
    loaders = []
    for rank in RANKS:
        sampler = DistributedSampler(dataset, num_replicas=len(RANKS), rank=rank)
        sampler.set_epoch(epoch)
        loaders.append(DataLoader(dataset, batch_size=batch_size, sampler=sampler))
    return zip(*loaders)


def agree(model, state, start, tolerance=1e-9):
    for name, wanted in model.state_dict().items():
        found = state[name]
        assert torch.allclose(found.to(wanted.dtype), wanted, rtol=0, atol=tolerance), (
            f"{name}: {(found - wanted).abs().max():.1e}"
        )
    assert any(not torch.equal(state[name], start[name]) for name in start)


def check_dcgan(program, saved):
    netG, netD = program.generator(nn.BatchNorm2d), program.discriminator(nn.BatchNorm2d)
    netG.load_state_dict(saved["start"]["G"])
    netD.load_state_dict(saved["start"]["D"])
    optimizerG, optimizerD = (
        torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (netG, netD)
    )
    for epoch in range(2):
        for i, parts in enumerate(batches_of_all(program.pictures(), epoch, 8)):
            real = torch.cat([images for (images,) in parts])
            noise = torch.cat([program.noise_of(epoch, i, r, len(parts[r][0])) for r in RANKS])
            fake = netG(noise)
            outputs = netD(real), netD(fake.detach())
            lossD = sum(
                F.binary_cross_entropy_with_logits(o, torch.full_like(o, v))
                for o, v in zip(outputs, (1.0, 0.0))
            )
            optimizerD.zero_grad()
            lossD.backward()
            optimizerD.step()
            output = netD(fake)
            lossG = F.binary_cross_entropy_with_logits(output, torch.ones_like(output))
            optimizerG.zero_grad()
            lossG.backward()
            optimizerG.step()
    agree(netG, saved["G"], saved["start"]["G"])
    agree(netD, saved["D"], saved["start"]["D"])
    assert torch.allclose(saved["losses"], torch.stack([lossD, lossG]))


def check_accumulation(program, saved):
    model = program.make_model()
    model.load_state_dict(saved["start"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * 3 * 2, momentum=0.9, weight_decay=5e-5)
    for epoch in range(3):
        steps = list(batches_of_all(program.make_data(), epoch, 4))
        assert len(steps) == 7
        losses = []
        for window in (steps[:3], steps[3:6], steps[6:]):
            losses += [F.cross_entropy(model(x), y) / len(RANKS) for parts in window for x, y in parts]
            optimizer.zero_grad()
            (sum(losses[-2 * len(window) :]) / 3).backward()
            optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.8
    agree(model, saved["model"], saved["start"])
    assert saved["loss"] == pytest.approx(sum(losses).item() / 7)


def check_uneven(program, saved):
    model = program.make_model()
    model.load_state_dict(saved["start"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    lasts = []
    for epoch in range(3):
        data = [list(program.batches(rank, epoch)) for rank in RANKS]
        for step in range(max(map(len, data))):
            optimizer.zero_grad()
            loss = sum(
                F.cross_entropy(model(x), y) for x, y in (part[step] for part in data if step < len(part))
            )
            (loss / len(RANKS)).backward()
            optimizer.step()
        lasts.append(max(RANKS, key=lambda rank: len(data[rank])))
    agree(model, saved["model"], saved["start"])
    assert saved["lasts"] == lasts and len(set(lasts)) == 2
    assert saved["counts"] == [8 * len(part) for part in data]


def check_sync_norm(program, saved):
    model = program.make_model(nn.BatchNorm2d)
    model.load_state_dict(saved["start"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        for parts in batches_of_all(program.make_data(), epoch, 6):
            outputs = model(torch.cat([x for x, _ in parts]))
            pairs = zip(outputs.split([len(x) for x, _ in parts]), (y for _, y in parts))
            optimizer.zero_grad()
            (sum(F.cross_entropy(output, y) for output, y in pairs) / len(RANKS)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    agree(model, saved["model"], saved["start"])
    model.eval()
    with torch.no_grad():
        assert torch.allclose(saved["outputs"], model(program.make_data().tensors[0]))
