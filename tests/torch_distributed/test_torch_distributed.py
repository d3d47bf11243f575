"""The checks of ranks_*.py on 2 and 3 living ranks of PyTorch."""

import pytest

from harness import check_names
from harness.frameworks import run_check
from harness.installed import need

need("torch")

# (the checks, numbers of ranks, those for `make test-all` only)
MODULES = [
    ("ranks_collectives", (2, 3), ()),
    ("ranks_groups", (2, 3), ()),
    ("ranks_training", (2,), ()),
    ("ranks_libraries", (2, 3), (3,)),
]
CASES = [
    pytest.param(
        module, ranks, check, id=f"{module}-{ranks}-{check}", marks=[pytest.mark.slow] if ranks in slow else []
    )
    for module, counts, slow in MODULES
    for ranks in counts
    for check in check_names(f"torch_distributed/{module}.py")
]


@pytest.mark.parametrize(("module", "ranks", "check"), CASES)
def test_check(module, ranks, check):
    run_check("torch", ranks, "torch_distributed", module, check)
