"""The last step of a vendor's flow: PyTorch on their device trains over their backend, in a clean environment."""

import os
import re
from pathlib import Path

import pytest

from clean_environment import build_wheel
from hvd_core._cli import plugin_new
from hvd_core._cli.plugin_new import Names, Template

# The sources of a PyTorch device, which this test gives the names of the new project.
TORCH_GCU = Path(__file__).resolve().parents[2] / "simulators" / "torch_gcu"

# The program of the ranks.
TRAINING = Path(__file__).with_name("train_on_npu.py")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def with_torch(installed, project):
    """The environment with PyTorch, and the vendor's device for it: what a vendor has besides the backend."""
    device = project.parent / "torch_npu"
    ours = plugin_new.find_template()
    names = Names("acme", "acme", "npu", "acmert")
    # Built files of an installation in the checkout are not sources.
    built = ("build", "dist", "*.so", "*.egg-info")
    plugin_new.write_project(Template(TORCH_GCU, ours.names, built, ()), names, device, {}, {})
    build_wheel(
        device,
        "--no-isolation",
        f"-Ccmake.define.runtime_include_dirs={project / 'simulator' / 'include'}",
        env=os.environ,
    )
    installed.borrow("torch")
    (built,) = (device / "dist").glob("*.whl")
    installed.install(built)
    return installed


@pytest.mark.slow  # half a minute. `make test` has the flow up to here, and tests/horovod/torch on the template's device.
def test_backend_trains(with_torch, tmp_path):
    said = with_torch.run(
        "horovodrun", "-np", "2", str(with_torch.python), str(TRAINING), cwd=tmp_path, HOROVOD_BACKEND="acme"
    )
    assert len(re.findall(r"TRAINED on npu:[01] by acme", said)) == 2
