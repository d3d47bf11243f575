"""`hvd bench` with the alternatives on PyTorch, as under a launcher: each collective gives the right values in
each of them."""

import torch_bench_ranks
from harness import run_on_ranks
from hvd_core.bench.alternative import COLLECTIVES


def test_every_collective_is_right_in_every_alternative():
    done = run_on_ranks(3, torch_bench_ranks.measure_all, COLLECTIVES, "cpu", framework="torch")
    found, failed = done.results[0]
    assert failed == {} and done.results[1][0] == found
    assert {name for _, name, _ in found} == {"numpy", "torch", "torch.distributed"}
    measured = {key for key, (wrong, why) in found.items() if why is None}
    assert all(found[key][0] == 0 for key in measured), found
    assert {(collective, "torch", False) for collective in COLLECTIVES} <= measured
    assert {("allreduce", "torch", True), ("broadcast", "torch", True)} <= measured
    assert {c for c, name, _ in measured if name == "torch.distributed"} >= {"allreduce", "broadcast"}
    assert found["allgather", "numpy", False] == (None, "NumPy has no bfloat16")


def test_a_device_type_that_is_not_here_is_told_by_each_rank():
    found, failed = run_on_ranks(2, torch_bench_ranks.measure_all, (), "xla", framework="torch").results[1]
    assert found == {}
    assert failed["numpy"] == "rank 0: it has no tensors on the device type xla"
    assert failed["torch"] == "rank 0: PyTorch sees no device of the type xla here"
