"""The checks of ranks_jax_*.py on living ranks."""

import pytest

from harness.checks import check_names, run_check
from harness.frameworks import environment_of
from harness.installed import need

need("jax", "optax")

MODULES = [
    "ranks_jax_matrix",
    "ranks_jax_ops",
    "ranks_jax_programs",
    "ranks_jax_refusals",
    "ranks_jax_training",
]
CASES = [(ranks, m, c) for ranks in (2, 3, 1) for m in MODULES for c in check_names(f"jax/{m}.py")]
# The matrix repeats in all ways what the other modules have in some. On three ranks, those of OFTEN; the others repeat
# what runs on two.
SELDOM = "ranks_jax_matrix"
OFTEN = {"check_process_sets", "check_ranks_take_different_branches", "check_reducescatter"}
DEVICES = {"XLA_FLAGS": environment_of("jax")["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"}
ON_A_MESH = ("check_a_mesh_of_several_devices_is_refused", "check_programs_that_the_compiler_divides")


def marks(ranks, module, check):
    is_usual = ranks == 2 or (ranks == 3 and check in OFTEN)
    return () if is_usual and module != SELDOM else pytest.mark.slow


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("ranks", "module", "check"),
    [pytest.param(*case, id=f"{case[1]}-{case[0]}-{case[2]}", marks=marks(*case)) for case in CASES],
)
def test_check(ranks, module, check):
    process_env = DEVICES if check in ON_A_MESH else None
    options = {"init_options": {"process_sets": "dynamic"}, "timeout": 150}
    run_check("jax", ranks, "jax", module, check, process_env=process_env, **options)
