"""Rank and size from every launcher's variables, and the error texts for invalid environments."""

import re

import pytest

from hvd_core._bootstrap.launchers.identity import identify
from hvd_core._bootstrap.launchers.process import launcher_pid

SECRET = "ab" * 32
HVD = {"HOROVOD_STORE": "tcp://10.0.0.1:4000", "HOROVOD_SECRET_KEY": SECRET}
OMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "job-7@1"}
ELASTIC = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, None, None, "single")),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, (0, 1, None, None, "horovodrun")),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "3", **HVD}, (2, 3, None, None, "horovodrun")),
        (
            {
                "HOROVOD_RANK": "2",
                "HOROVOD_SIZE": "3",
                "HOROVOD_LOCAL_RANK": "1",
                "HOROVOD_LOCAL_SIZE": "2",
                **HVD,
            },
            (2, 3, 1, 2, "horovodrun"),
        ),
        (OMPI, (1, 4, None, None, "openmpi")),
        (
            {**OMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            (1, 4, 1, 2, "openmpi"),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            (1, 2, 1, 2, "mpich"),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, None, None, "mpich")),
        (ELASTIC, (3, 4, 1, 2, "torchrun")),
        (SRUN, (5, 7, 1, 3, "srun")),
        ({**SRUN, "PMI_RANK": "5"}, (5, 7, 1, 3, "srun")),
        ({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "7"}, (5, 7, 1, 3, "mpich")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1, None, None, "single")),
        ({"PMIX_RANK": "3"}, (3, None, None, None, "pmix")),
        ({**OMPI, "HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", **HVD}, (0, 2, None, None, "horovodrun")),
        ({**SRUN, **ELASTIC}, (3, 4, 1, 2, "torchrun")),
    ],
)
def test_identity_of_each_launcher(environ, expected):
    me = identify(environ)
    assert (me.rank, me.size, me.local_rank, me.local_size, me.launcher) == expected


def test_identity_carries_store_secret_and_job():
    me = identify({**OMPI, **HVD})
    assert (me.store, me.secret, me.launcher) == ("tcp://10.0.0.1:4000", bytes.fromhex(SECRET), "openmpi")
    assert me.job == ("PMIX_NAMESPACE=job-7@1",)
    assert identify({**OMPI}).store is None


BAD = [
    ({"HOROVOD_RANK": "0"}, "HOROVOD_RANK='0' is set but HOROVOD_SIZE is not"),
    ({"HOROVOD_SIZE": "2"}, "HOROVOD_SIZE='2' is set but HOROVOD_RANK is not"),
    ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "HOROVOD_RANK is set but HOROVOD_STORE is not"),
    ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "2", **HVD}, "HOROVOD_RANK=2 is not below HOROVOD_SIZE=2"),
    ({"HOROVOD_RANK": "-1", "HOROVOD_SIZE": "2", **HVD}, "HOROVOD_RANK='-1' is not an integer >= 0"),
    ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "two", **HVD}, "HOROVOD_SIZE='two' is not an integer >= 1"),
    ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "0", **HVD}, "HOROVOD_SIZE='0' is not an integer >= 1"),
    ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2\N{SUPERSCRIPT TWO}", **HVD}, "HOROVOD_SIZE"),
    ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "", **HVD}, "HOROVOD_SIZE='' is not an integer >= 1"),
    (
        {
            "HOROVOD_RANK": "0",
            "HOROVOD_SIZE": "2",
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_LOCAL_SIZE": "3",
            **HVD,
        },
        "HOROVOD_LOCAL_SIZE=3 is more than the whole job of 2",
    ),
    (
        {
            "HOROVOD_RANK": "0",
            "HOROVOD_SIZE": "2",
            "HOROVOD_LOCAL_RANK": "2",
            "HOROVOD_LOCAL_SIZE": "2",
            **HVD,
        },
        "HOROVOD_LOCAL_RANK=2 is not below HOROVOD_LOCAL_SIZE=2",
    ),
    ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_STORE": "tcp://a:1"}, "HOROVOD_SECRET_KEY is not"),
    (
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_STORE": "a:1", "HOROVOD_SECRET_KEY": SECRET},
        "HOROVOD_STORE: bad store address 'a:1'",
    ),
    (
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_STORE": "tcp://a:1", "HOROVOD_SECRET_KEY": "abc"},
        "HOROVOD_SECRET_KEY must be at least 32 hexadecimal digits",
    ),
    ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not"),
    ({"PMI_SIZE": "2"}, "PMI_SIZE='2' is set but PMI_RANK is not"),
    ({"RANK": "0"}, "RANK='0' is set but WORLD_SIZE is not"),
    ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2,x"}, "SLURM_STEP_TASKS_PER_NODE='2,x' is not a list"),
    ({**SRUN, "SLURM_NODEID": "3"}, "SLURM_NODEID=3 and SLURM_LOCALID=1 do not fit"),
]


@pytest.mark.parametrize(("environ", "text"), BAD, ids=range(len(BAD)))
def test_identity_refuses_nonsense_by_name(environ, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        identify(environ)


def test_identity_never_prints_the_secret():
    with pytest.raises(ValueError, match="HOROVOD_SECRET_KEY") as caught:
        identify({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", **HVD, "HOROVOD_SECRET_KEY": "cafe" * 8 + "xy"})
    assert "cafe" not in str(caught.value)


def test_launcher_process_is_an_ancestor():
    pid, started = launcher_pid("HVD_TEST_SURELY_UNSET")
    assert pid > 0 and started >= 0
