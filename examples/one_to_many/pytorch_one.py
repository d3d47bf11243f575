"""Trains a classifier of handwritten digits with PyTorch, in one process: python pytorch_one.py"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train_set, test_set = TensorDataset(images[:1400], labels[:1400]), TensorDataset(images[1400:], labels[1400:])
loader = DataLoader(train_set, batch_size=32, shuffle=True)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(10):
    for inputs, targets in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        inputs, targets = test_set.tensors
        accuracy = (model(inputs).argmax(dim=1) == targets).float().mean()
    print(f"epoch {epoch}: test accuracy {100 * accuracy.item():.2f} %")

torch.save(model.state_dict(), "digits.pt")
