"""A DCGAN with two optimizers, as programs for Horovod write it. The discriminator does two backwards per step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

LATENT, WIDTH = 8, 8


def generator(norm):
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 2 * WIDTH, 4, 1, 0, bias=False),
        norm(2 * WIDTH),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, 2, 1, bias=False),
        norm(WIDTH),
        nn.ReLU(True),
        nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def discriminator(norm):
    return nn.Sequential(
        nn.Conv2d(1, WIDTH, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1, bias=False),
        norm(2 * WIDTH),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(2 * WIDTH, 1, 4, 1, 0, bias=False),
        nn.Flatten(0),
    )


def weights_init(module):
    if "Conv" in type(module).__name__:
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif "Norm" in type(module).__name__:
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def pictures():
    """64 pictures of 16 x 16 with a bright square each."""
    images = torch.full((64, 1, 16, 16), -1.0)
    for i, image in enumerate(images):
        row, column = i % 8, i // 8
        image[0, row : row + 6, column : column + 6] = 1.0
    return TensorDataset(images)


def noise_of(epoch, batch, rank, count):
    seed = torch.Generator().manual_seed(10000 * epoch + 100 * batch + rank)
    return torch.randn(count, LATENT, 1, 1, generator=seed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--beta1", type=float, default=0.5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", default="dcgan.pt")
    opt = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, opt.dtype))

    dataset = pictures()
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=opt.batch_size, sampler=sampler)

    netG, netD = generator(hvd.SyncBatchNorm), discriminator(hvd.SyncBatchNorm)
    netG.apply(weights_init)
    netD.apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))

    for net, optimizer in ((netG, optimizerG), (netD, optimizerD)):
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizerD = hvd.DistributedOptimizer(
        optimizerD, named_parameters=netD.named_parameters(), backward_passes_per_step=2
    )
    optimizerG = hvd.DistributedOptimizer(optimizerG, named_parameters=netG.named_parameters())
    start = {
        name: {k: v.clone() for k, v in net.state_dict().items()} for name, net in (("G", netG), ("D", netD))
    }

    for epoch in range(opt.epochs):
        sampler.set_epoch(epoch)
        for i, (real,) in enumerate(loader):
            # Discriminator: one backward for the real pictures, one for the generated ones.
            netD.zero_grad()
            output = netD(real)
            errD_real = criterion(output, torch.ones_like(output))
            errD_real.backward()
            fake = netG(noise_of(epoch, i, hvd.rank(), len(real)))
            output = netD(fake.detach())
            errD_fake = criterion(output, torch.zeros_like(output))
            errD_fake.backward()
            optimizerD.step()

            # Generator, with the discriminator frozen.
            for param in netD.parameters():
                param.requires_grad_(False)
            netG.zero_grad()
            output = netD(fake)
            errG = criterion(output, torch.ones_like(output))
            errG.backward()
            optimizerG.step()
            for param in netD.parameters():
                param.requires_grad_(True)
        losses = hvd.allreduce(torch.stack([errD_real + errD_fake, errG]).detach(), name="losses")
        if hvd.rank() == 0:
            print(f"[{epoch + 1}/{opt.epochs}] Loss_D: {losses[0]:.4f} Loss_G: {losses[1]:.4f}")

    if hvd.rank() == 0:
        torch.save(
            {"start": start, "G": netG.state_dict(), "D": netD.state_dict(), "losses": losses}, opt.out
        )


if __name__ == "__main__":
    main()
