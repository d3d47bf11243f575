"""torch.distributed over hvd on two hosts: DDP under horovodrun, and under torchrun, whose store the ranks meet in."""

import re
import sys
from pathlib import Path

import pytest

from harness.installed import need

pytest.importorskip("hvd_core._core", reason="the engine is not built")
need("torch")
pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).resolve().parents[2] / "horovod/torch_distributed" / "trained_program.py"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HOROVOD_START_TIMEOUT": "200"}


def trained(text, ranks):
    return sorted(re.findall(r"rank (\d) of (\d): trained", text)) == [
        (str(rank), str(ranks)) for rank in range(ranks)
    ]


def test_under_horovodrun(cluster):
    done = cluster(2, 1).run("-np", 3, sys.executable, PROGRAM, env=ENVIRONMENT, timeout=250)
    assert done.returncode == 0, done.stderr
    assert trained(done.stdout, 3), done.stdout


def test_under_torchrun(cluster):
    made = cluster(2, 2)
    starts = [
        made.start_command(
            [*host.enter, sys.executable, "-m", "torch.distributed.run"]
            + ["--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(number)]
            + ["--master-addr", made.network[0].address, "--master-port", "29500", str(PROGRAM)],
            ENVIRONMENT,
        )
        for number, host in enumerate(made.network)
    ]
    told = [process.communicate(timeout=250) for process in starts]
    assert [process.returncode for process in starts] == [0, 0], told
    assert trained(b"".join(out for out, _ in told).decode(), 4), told
    assert made.wait_for_none() == []
