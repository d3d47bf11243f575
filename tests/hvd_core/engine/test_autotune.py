"""Autotune: the search as a plain C++ object on a virtual clock (native/autotune_test.cc), and in a job of three ranks."""

import csv

import numpy as np
import pytest

import native_program
from harness import run_on_ranks


@pytest.fixture(scope="module")
def program():
    return native_program.build("autotune_test")


@pytest.mark.parametrize("check", native_program.checks_of("autotune_test"))
def test_autotune(program, check):
    native_program.expect_check_passes(program, check)


def test_autotune_all_checks_are_listed(program):
    native_program.expect_all_checks_are_listed(program, "autotune_test")


def train(steps):
    """Gradients of several sizes, whose sums depend on the order of the ranks; every step must give the same bits."""
    import hvd_core as hvd

    random = np.random.default_rng(hvd.rank())
    sizes = [3, 700, 70_000, 5, 33, 20_000]
    gradients = [
        (random.standard_normal(size) * 10.0 ** random.integers(-6, 6, size)).astype("f4") for size in sizes
    ]
    alone = [hvd.allreduce(gradient, name=f"alone.{i}", op=hvd.Sum) for i, gradient in enumerate(gradients)]
    for step in range(steps):
        handles = [
            hvd.allreduce_async(gradient, name=f"gradient.{i}", op=hvd.Sum)
            for i, gradient in enumerate(gradients)
        ]
        for expected, handle in zip(alone, handles):
            found = hvd.synchronize(handle)
            assert found.tobytes() == expected.tobytes(), f"step {step}"
    return hvd.rank()


def test_settings_change_while_a_job_trains_and_no_bit_of_a_result_does(tmp_path):
    log = tmp_path / "autotune.csv"
    env = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(log),
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "3",
    }
    assert run_on_ranks(3, train, 600, env=env).results == [0, 1, 2]
    rows = list(csv.DictReader(log.open()))
    assert (
        rows[0]["fusion_threshold_mb"] == "128"
        and rows[0]["cycle_time_ms"] == "1"
        and rows[0]["result"] == "base"
    )
    tried = {row["cycle_time_ms"] for row in rows}
    assert len(tried) > 1, rows
    assert {row["result"] for row in rows} <= {"base", "better", "not better", "too slow", "chosen"}
    assert all(float(row["score_bytes_per_us"]) > 0 for row in rows if row["result"] == "base")


def test_a_log_that_cannot_be_written_is_told_and_stops_nothing(tmp_path):
    env = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(tmp_path / "missing" / "a.csv")}
    done = run_on_ranks(2, train, 3, env=env)
    assert done.outputs[1] == ""
    assert "HOROVOD_AUTOTUNE_LOG=" in done.outputs[0] and "No such file or directory" in done.outputs[0]
