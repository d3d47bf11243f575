"""A rank that trains a small model on the PyTorch device "npu" over the backend "acme", and looks at the result."""

import torch

import horovod.torch as hvd


def main():
    hvd.init()
    torch.npu.set_device(hvd.local_rank())
    device = torch.device("npu", hvd.local_rank())
    torch.manual_seed(hvd.rank())  # the ranks begin differently, and are made equal
    inputs = torch.randn(256, 8)
    targets = inputs @ torch.arange(8.0) + 1
    model = torch.nn.Linear(8, 1).to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    losses = []
    for step in range(60):
        part = slice(step % 8 * 32, step % 8 * 32 + 32)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(
            model(inputs[part].to(device)).squeeze(1), targets[part].to(device)
        )
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = hvd.allgather(weights.unsqueeze(0), name="weights").cpu()
    assert everyone.shape[0] == hvd.size() and (everyone == everyone[0]).all(), everyone
    assert losses[-1] < losses[0] / 1000, losses
    assert torch.allclose(weights[:8].cpu(), torch.arange(8.0), atol=0.1), weights
    ways = {(r.operation, r.device): (r.backend, r.support, r.source) for r in hvd.backend_report()}
    assert ways["allreduce", "npu"] == ("acme", "NATIVE", "HOROVOD_BACKEND"), ways
    print(f"TRAINED on {weights.device} by {ways['allreduce', 'npu'][0]}")


if __name__ == "__main__":
    main()
