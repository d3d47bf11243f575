"""A small training by libraries above torch.distributed, on ranks of torchrun: accelerate, Lightning. Each rank prints a
line when its weights are those of one process with the data of all ranks.

library_programs.py accelerate|lightning
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from trained_program import STEPS, data, expected, model


def compare(trained, me, ranks):
    for name, value in expected(ranks).items():
        torch.testing.assert_close(trained.state_dict()[name], value)
    assert dist.get_backend() == "hvd", dist.get_backend()
    print(f"rank {me} of {ranks}: trained", flush=True)


def accelerate():
    from accelerate import Accelerator

    dist.init_process_group("hvd")  # accelerate takes the group that is there
    accelerator = Accelerator(cpu=True)
    me, ranks = accelerator.process_index, accelerator.num_processes
    assert ranks == dist.get_world_size()
    trained, given = model(), data(me)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    parallel, optimizer = accelerator.prepare(trained, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(F.mse_loss(parallel(given[0]), given[1]))
        optimizer.step()
    gathered = accelerator.gather(torch.full((2,), float(me)))
    assert gathered.tolist() == [float(rank) for rank in range(ranks) for _ in range(2)]
    assert accelerator.reduce(torch.ones(3), "mean").tolist() == [1] * 3
    accelerator.wait_for_everyone()
    compare(accelerator.unwrap_model(parallel), me, ranks)
    accelerator.end_training()


def lightning():
    import os

    try:
        import lightning.pytorch as pl
        from lightning.pytorch.strategies import DDPStrategy
    except ImportError:
        import pytorch_lightning as pl
        from pytorch_lightning.strategies import DDPStrategy

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = model()
            self.seen = 0

        def training_step(self, batch, _):
            loss = F.mse_loss(self.inner(batch[0][0]), batch[1][0])
            self.seen += 1
            self.log("loss", loss, sync_dist=True)  # an all_reduce
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    ranks = int(os.environ["WORLD_SIZE"])
    torch.use_deterministic_algorithms(True)
    # One batch for each rank, which comes again in each epoch.
    rows = torch.utils.data.TensorDataset(*[torch.stack(parts) for parts in zip(*map(data, range(ranks)))])
    trainer = pl.Trainer(
        accelerator="cpu", devices=ranks, max_epochs=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        strategy=DDPStrategy(process_group_backend="hvd"),
    )  # fmt: skip
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=1, shuffle=False))
    assert module.seen == STEPS
    compare(module.inner, trainer.global_rank, ranks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"accelerate": accelerate, "lightning": lightning}[sys.argv[1]]()
