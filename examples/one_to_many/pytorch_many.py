"""Trains a classifier of handwritten digits with PyTorch, in several processes:
horovodrun -np 2 python pytorch_many.py"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

hvd.init()
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
torch.manual_seed(1)
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train_set, test_set = TensorDataset(images[:1400], labels[:1400]), TensorDataset(images[1400:], labels[1400:])
sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)
loader = DataLoader(train_set, batch_size=32, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(10):
    sampler.set_epoch(epoch)  # another order in every epoch
    for inputs, targets in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        inputs, targets = (part[hvd.rank() :: hvd.size()] for part in test_set.tensors)
        right = (model(inputs).argmax(dim=1) == targets).float().sum()
        accuracy = hvd.allreduce(right, name="right", op=hvd.Sum) / len(test_set)
    if hvd.rank() == 0:
        print(f"epoch {epoch}: test accuracy {100 * accuracy.item():.2f} %")

if hvd.rank() == 0:
    torch.save(model.state_dict(), "digits.pt")
