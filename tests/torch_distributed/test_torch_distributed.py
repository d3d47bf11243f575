"""The checks of ranks_*.py on 2 and 3 living ranks of PyTorch."""

import pytest

from harness import check_names
from harness.frameworks import run_check
from harness.installed import need

need("torch")

CASES = [
    (module, ranks, check)
    for module, counts in (("ranks_collectives", (2, 3)), ("ranks_groups", (2, 3)), ("ranks_training", (2,)))
    for ranks in counts
    for check in check_names(f"torch_distributed/{module}.py")
]


@pytest.mark.parametrize(("module", "ranks", "check"), CASES, ids=[f"{m}-{n}-{c}" for m, n, c in CASES])
def test_check(module, ranks, check):
    run_check("torch", ranks, "torch_distributed", module, check)
