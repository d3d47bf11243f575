"""The last step of a vendor's flow: PyTorch on their device trains over their backend, in a clean environment."""

import os
import re
from pathlib import Path

import pytest

from clean_environment import build_wheel
from hvd_core.cli import template
from hvd_core.cli.template import Names, Template

# The sources of a PyTorch device, which this test gives the names of the new project.
TORCH_GCU = Path(__file__).resolve().parents[1] / "devices" / "torch_gcu"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def with_torch(installed, project):
    """The environment with PyTorch, and the vendor's device for it: what a vendor has besides the backend."""
    device = project.parent / "torch_npu"
    ours = template.find()
    names = Names("acme", "acme", "npu", "acmert")
    # Built files of an installation in the checkout are not sources.
    built = ("build", "dist", "*.so", "*.egg-info")
    template.write(Template(TORCH_GCU, ours.names, built, ()), names, device, {}, {})
    build_wheel(
        device,
        "--no-isolation",
        f"-Ccmake.define.vendor_include={project / 'simulator' / 'include'}",
        env=os.environ,
    )
    installed.borrow("torch")
    (built,) = (device / "dist").glob("*.whl")
    installed.install(built)
    return installed


TRAINING = """
import torch
import horovod.torch as hvd

hvd.init()
torch.npu.set_device(hvd.local_rank())
device = torch.device("npu", hvd.local_rank())
torch.manual_seed(hvd.rank())  # the ranks begin differently, and are made equal
inputs = torch.randn(256, 8)
targets = inputs @ torch.arange(8.0) + 1
model = torch.nn.Linear(8, 1).to(device)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
losses = []
for step in range(60):
    part = slice(step % 8 * 32, step % 8 * 32 + 32)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs[part].to(device)).squeeze(1), targets[part].to(device))
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
"""


@pytest.mark.slow  # half a minute. `make test` has the flow up to here, and tests/torch on the template's device.
def test_backend_trains(with_torch, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    said = with_torch.run(
        "horovodrun", "-np", "2", str(with_torch.python), "train.py", cwd=tmp_path, HOROVOD_BACKEND="acme"
    )
    assert len(re.findall(r"TRAINED on npu:[01] by acme", said)) == 2
