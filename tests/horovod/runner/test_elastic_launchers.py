"""Programs with elastic code in jobs that are not elastic: they run, and say what the job cannot do."""

import sys

import pytest

import elastic_ranks
from horovod.common._elastic_job import explanation
from launchers import program_words

pytest.importorskip("hvd_core._core", reason="the engine is not built")


@pytest.mark.parametrize(
    "environ, why, fix",
    [
        (
            {
                "HOROVOD_RANK": "0",
                "HOROVOD_SIZE": "2",
                "HOROVOD_STORE": "tcp://h:1",
                "HOROVOD_SECRET_KEY": "00" * 32,
            },
            "horovodrun started it with a fixed number of processes",
            "--min-np M",
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            "mpirun started it, and ends all processes",
            "restart the job from a checkpoint",
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "mpirun started it", "restart the job from a checkpoint"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "--max-restarts ends all processes when one dies and starts them again",
            "read a checkpoint at the start",
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"},
            "starts no process to replace one that has died",
            "start one horovodrun --min-np M in the allocation",
        ),
        ({}, "its launcher did not start it as one", "--min-np M"),
    ],
)
def test_the_explanation_fits_the_launcher(environ, why, fix):
    text = explanation(environ)
    first, second = text.split("\n")
    assert first.startswith("horovod: this job is not elastic: ") and why in first
    assert second.startswith("  fix: ") and fix in second


def test_horovodrun_with_a_fixed_number_of_processes(launcher):
    (launcher.folder / "enough").touch()
    done = launcher.python(2, elastic_ranks.count_steps)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is done, no steps") == 2
    assert done.stderr.count("this job is not elastic: horovodrun started it with a fixed number") == 1


@pytest.mark.slow
def test_torchrun(launcher):
    pytest.importorskip("torch")
    (launcher.folder / "enough").touch()
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = launcher.start_command([*words, *program_words(elastic_ranks.count_steps)[1:]])
    out, err = (data.decode() for data in process.communicate(timeout=200))
    assert process.returncode == 0, err
    assert out.count("is done, no steps") == 2
    assert err.count("this job is not elastic: torchrun started it") == 1
