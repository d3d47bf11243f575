"""The table for front ends without Python, on one to three ranks: every check of ranks_frontend*.py is a test here."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from harness.frameworks import horovodrun

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(300)
MODULES = ("ranks_frontend", "ranks_frontend_errors")
CHECKS = [
    node.name
    for module in MODULES
    for node in ast.parse((HERE / f"{module}.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module", params=[1, 2, 3])
def job(request, tmp_path_factory):
    """(number of ranks, what they printed, how the job ended)."""
    done = subprocess.run(
        [*horovodrun(request.param), str(HERE / "frontend_rank_main.py"), *MODULES],
        env={**os.environ, "FRONTEND_FOLDER": str(tmp_path_factory.mktemp("frontend"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    return request.param, done.stdout, done.returncode


@pytest.mark.parametrize("check", CHECKS)
def test_frontend_on_ranks(job, check):
    ranks, output, _ = job
    skipped = re.findall(rf"^\[\d\]<stdout>:SKIPPED {check}: (.*)$", output, re.MULTILINE)
    if len(skipped) == ranks:
        pytest.skip(skipped[0])
    passed = [f"[{r}]<stdout>:PASSED {check}" in output.splitlines() for r in range(ranks)]
    assert all(passed), f"{check} has not passed on all ranks:\n{output[-6000:]}"


def test_frontend_job_ends_well(job):
    _, output, code = job
    assert code == 0, output[-3000:]
