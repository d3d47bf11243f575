"""The checks of ranks_*.py on 2 or 3 living ranks of PyTorch, and on both in slow tests."""

import pytest

from harness.checks import check_names, run_check
from harness.installed import need

need("torch")

MODULES = {
    "ranks_collectives": (2, 3),
    "ranks_groups": (2, 3),
    "ranks_training": (2,),
    "ranks_libraries": (2, 3),
}
# Parts are uneven and groups are parts on three ranks; the other checks do not depend on the number.
FIRST = {"ranks_collectives": 3, "ranks_groups": 3, "ranks_training": 2, "ranks_libraries": 2}
# They import much of PyTorch.
SLOW = (
    "check_zero_redundancy_optimizer",
    "check_zero_redundancy_optimizer_with_overlap",
    "check_distributed_checkpoint",
)


def marks_of(module, ranks, check):
    return [pytest.mark.slow] if check in SLOW or ranks != FIRST[module] else []


CASES = [
    pytest.param(module, ranks, check, id=f"{module}-{ranks}-{check}", marks=marks_of(module, ranks, check))
    for module, counts in MODULES.items()
    for ranks in counts
    for check in check_names(f"torch_distributed/{module}.py")
]


@pytest.mark.parametrize(("module", "ranks", "check"), CASES)
def test_check(module, ranks, check):
    run_check("torch", ranks, "torch_distributed", module, check)
