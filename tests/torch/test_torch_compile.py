"""Operations and training under torch.compile, on two ranks: without PyTorch's code generator (inductor), which takes
minutes to compile without a cache, and with it."""

import functools

import pytest

pytest.importorskip("torch")

from launch import Report, checks_of

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


@functools.cache
def report(module, timeout):
    return Report([module], 2, DYNAMIC, timeout)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", checks_of("ranks_compile"))
def test_compiled(check):
    report("ranks_compile", 580).verify("ranks_compile", check)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("check", checks_of("ranks_compile_inductor"))
def test_compiled_to_code(check):
    report("ranks_compile_inductor", 880).verify("ranks_compile_inductor", check)
