"""The smallest training job: every process fits the same model to its part of scikit-learn's digits."""

import torch
from sklearn.datasets import load_digits

import horovod.torch as hvd

hvd.init()
pixels, labels = (torch.tensor(a).float() for a in load_digits(return_X_y=True))
pixels, labels = pixels[hvd.rank() :: hvd.size()] / 16, labels[hvd.rank() :: hvd.size()].long()
model = torch.nn.Linear(64, 10)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
for _ in range(100):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(pixels), labels).backward()
    optimizer.step()
right = hvd.allreduce((model(pixels).argmax(1) == labels).float().mean())
if hvd.rank() == 0:
    print(f"{hvd.size()} processes, accuracy {right:.1%}")
