"""Device types that no backend serves: whether front ends may copy their tensors through host memory, and the reports."""

import pytest

from hvd_core._config import plugins_toml
from hvd_core.backends._selection.plan import COPIED, report
from listed_backends import ECCL, MPI, SHM, TCP, plan


def answers(backend, operation, dtype):
    return {"support": 0, "score": 10}


@pytest.mark.parametrize(
    "variable", ["HOROVOD_GPU_OPERATIONS", "HOROVOD_GPU_ALLREDUCE", "HOROVOD_GPU_ALLGATHER"]
)
def test_an_older_variable_names_a_backend_for_devices(variable, caplog):
    made = plan(SHM, TCP, **{variable: "NCCL"})
    assert made.named_for_devices == f"{variable} names the backend 'nccl' for devices"
    assert "so their tensors are refused" in report(made, answers).unserved


@pytest.mark.parametrize("value", [None, "shm", "cpu=shm", "eccl"])
def test_otherwise_they_are_copied(value):
    made = plan(SHM, TCP, ECCL, **({"value": value} if value else {}))
    assert made.named_for_devices == "" and "STAGED" in report(made, answers).unserved


def test_variables_below_a_backend_for_everything_do_not_count():
    assert plan(value="shm", HOROVOD_GPU_OPERATIONS="NCCL").named_for_devices == ""
    assert plan(SHM, TCP, MPI, HOROVOD_CPU_OPERATIONS="MPI").named_for_devices == ""


def copied(collective, dtype, op="Sum"):
    return {"collective": collective, "dtype": dtype, "op": op, "backend": "", "served": "STAGED", "how": ""}


def test_the_report_lists_what_was_copied():
    tpu = [copied("allreduce", "float32", "Sum"), copied("allgather", "int64")]
    info = [
        {"role": COPIED, "device_type": "tpu", "served": tpu},
        {"role": COPIED, "device_type": "ipu", "served": [copied("broadcast", "bool")]},
    ]
    made = report(plan(SHM, TCP), answers, info=info)
    rows = [(row.operation, row.device) for row in made if row.support == "STAGED"]
    operations = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]
    assert rows == [(operation, device) for device in ("tpu", "ipu") for operation in operations]
    assert {row.backend for row in made} == {"shm"}
    assert "  allreduce of float32 (sum) on tpu: STAGED, over shm\n" in str(made)
    assert "  allgather of int64 on tpu: STAGED, over shm\n" in str(made)


def test_the_wheel_for_a_device():
    assert plugins_toml.wheel_for_device("cuda") == "hvd-backend-nccl"
    assert plugins_toml.wheel_for_device("tpu") is None
