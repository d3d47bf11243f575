"""Operations and training under torch.compile, on two ranks: without PyTorch's code generator (inductor), which takes
minutes to compile without a cache, and with it."""

import pytest

from harness import check_names
from harness.frameworks import run_check
from harness.installed import need

need("torch")

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("check", check_names("torch/ranks_compile.py"))
def test_compiled(check):
    run_check("torch", 2, "torch", "ranks_compile", check, env=DYNAMIC)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("check", check_names("torch/ranks_compile_inductor.py"))
def test_compiled_to_code(check):
    run_check("torch", 2, "torch", "ranks_compile_inductor", check, env=DYNAMIC, timeout=880)
