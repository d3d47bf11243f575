"""The example trains on a device as it does on the CPU: the simulated `gcu`, one for each process by its local rank,
gradients over the template's backend. What there is in the way of operations is tested in tests/horovod/torch.
"""

import re
import sys

import pytest

from harness.frameworks import horovodrun
from harness.installed import need

need("torch_gcu", reason="`make test` installs tests/simulators/torch_gcu")

from test_pytorch_digits import HOROVODRUN, train  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trains_on_a_device(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_BACKEND", "eccl_stub")
    output, accuracy = train([*HOROVODRUN, "2", sys.executable], tmp_path, "--device", "gcu")
    assert accuracy >= 97.0
    assert "2 process(es) on gcu, backend eccl_stub" in output
    # Training goes on on the CPU from the file that was saved from the device.
    output, again = train([*HOROVODRUN, "2", sys.executable], tmp_path, "--resume", "--epochs", "31")
    assert again >= 97.0 and re.search(r"on cpu, backend \w+", output)


@pytest.mark.slow
def test_a_process_without_a_device_of_its_own_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPS_SIM_DEVICES", "1")
    with pytest.raises(AssertionError, match="process 1 of this host needs a device of its own"):
        train(horovodrun(2, framework="torch"), tmp_path, "--device", "gcu", "--epochs", "1")
