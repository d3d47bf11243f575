"""TensorFlow and PyTorch in one process use one engine in one job, in either order of import."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.frameworks import environment_of, horovodrun
from harness.installed import need

need("tensorflow", "torch")

HERE = Path(__file__).resolve().parent

# Two frameworks on two ranks, on two cores that have other work as well.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_two_frameworks_share_an_engine():
    """Rank 0 imports TensorFlow first, rank 1 PyTorch."""
    command = [*horovodrun(2), str(HERE / "rank_tf_torch.py")]
    env = {**os.environ, **environment_of("tensorflow"), "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=580
    )
    assert done.returncode == 0 and done.stdout.count("all well") == 2, done.stdout[-6000:]
