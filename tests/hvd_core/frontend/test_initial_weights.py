"""HOROVOD_CHECK_CONSISTENCY without a framework: weights that are announced to the engine, and the coordinator's
warning."""

import re

import numpy as np
import pytest

import hvd_core as hvd
from harness import run_on_ranks
from hvd_core._frontend import initial_weights
from hvd_core._runtime import current_job

CHECKED = {"HOROVOD_CHECK_CONSISTENCY": "1"}
REMEDY = "broadcast_them(0)"


def step(*names, process_set=None):
    """Reduces a gradient of four elements for each name."""
    for name in names:
        options = {} if process_set is None else {"process_set": process_set}
        hvd.allreduce(np.ones(4, np.float32), name=name, **options)


def announced(values, name="w", process_set=0):
    initial_weights.announce(f"allreduce.{name}", [(name, lambda: values)], REMEDY, process_set)


def two_steps(values_of_rank, *names):
    for name in names:
        announced(np.full(4, values_of_rank[hvd.rank()], np.float32), name)
    step(*names)
    step(*names)


def warnings_of(outcome):
    return re.findall(r"different weights: (\d+) of (\d+) parameters", outcome.output)


def test_names_parameters_and_ranks_by_groups():
    done = run_on_ranks(3, two_steps, {0: 1, 1: 1, 2: 7}, "w", "b", env=CHECKED)
    assert warnings_of(done) == [("2", "2")]
    assert "\n  w, b: one value on ranks 0, 1; another on rank 2\n" in done.outputs[0]
    assert f"    {REMEDY}\n" in done.outputs[0]
    assert not any("weights" in text for text in done.outputs[1:])


def test_equal_weights_are_not_warned_of():
    done = run_on_ranks(2, two_steps, {0: 3, 1: 3}, "w", env=CHECKED)
    assert "weights" not in done.output


def same_and_different():
    announced(np.ones(4), "same")
    announced(np.full(4, hvd.rank()), "different")
    step("same", "different")


def test_a_job_of_one_step_warns_at_its_end():
    done = run_on_ranks(2, same_and_different, env=CHECKED)
    assert warnings_of(done) == [("1", "2")]
    assert "\n  different: one value on rank 0; another on rank 1\n" in done.outputs[0]


def broadcast_after_the_first_step():
    announced(np.full(4, hvd.rank()))
    step("w")
    hvd.broadcast(np.ones(4, np.float32), 0, name="w")
    step("w")


def test_a_broadcast_after_the_first_step_withdraws_the_finding():
    assert "weights" not in run_on_ranks(2, broadcast_after_the_first_step, env=CHECKED).output


def broadcast_before_the_first_step():
    announced(np.full(4, hvd.rank()))
    hvd.broadcast(np.ones(3, np.float32), 0, name="anything")
    step("w")
    step("w")


def test_what_was_announced_before_a_broadcast_does_not_count():
    assert "weights" not in run_on_ranks(2, broadcast_before_the_first_step, env=CHECKED).output


def sets_of_two():
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    mine = sets[hvd.rank() // 2]
    # The sets' weights differ from each other, and in the second set its ranks' do.
    value = hvd.rank() // 2 if hvd.rank() < 2 else hvd.rank()
    announced(np.full(4, value), process_set=mine.process_set_id)
    step("w", process_set=mine)
    step("w", process_set=mine)
    hvd.barrier()


def test_ranks_are_compared_within_a_process_set():
    options = {"init_options": {"process_sets": "dynamic"}}
    done = run_on_ranks(4, sets_of_two, env=CHECKED, **options)
    assert warnings_of(done) == [("1", "1")]
    assert "\n  w: one value on rank 2; another on rank 3\n" in done.outputs[0]


def known_batch_then_weights():
    for _ in range(12):
        handles = [hvd.allreduce_async(np.ones(4, np.float32), name=name) for name in ("v", "w")]
        for handle in handles:
            hvd.synchronize(handle)
    two_steps({0: 0, 1: 1}, "v", "w")


def test_names_of_a_known_batch_are_compared_too():
    done = run_on_ranks(2, known_batch_then_weights, env=CHECKED)
    assert warnings_of(done) == [("2", "2")]


def only_rank_0_announces():
    if hvd.rank() == 0:
        announced(np.ones(4))
    step("w")
    step("w")


def test_ranks_that_announce_nothing_are_not_compared():
    assert "weights" not in run_on_ranks(2, only_rank_0_announces, env=CHECKED).output


def disagree():
    announced(np.full(4, hvd.rank()))
    try:
        hvd.allreduce(np.ones(4 + hvd.rank(), np.float32), name="w")
    except hvd.HorovodInternalError as error:
        return str(error)


def test_a_disagreement_is_reported_as_without_the_check():
    with_check = run_on_ranks(2, disagree, env=CHECKED)
    assert with_check.results == run_on_ranks(2, disagree).results
    assert "Mismatched ALLREDUCE tensor shapes" in with_check.results[0]
    assert "different weights" not in with_check.output


@pytest.mark.ranks(2)
def test_off_without_the_variable():
    assert not initial_weights.checked()
    assert not current_job.get().announced


def a_weight_that_cannot_be_read():
    def read():
        raise RuntimeError("no values here")

    initial_weights.announce("allreduce.w", [("bad", read), ("good", lambda: np.full(4, hvd.rank()))], REMEDY)
    step("w")


def test_a_weight_that_cannot_be_read_is_left_out():
    done = run_on_ranks(2, a_weight_that_cannot_be_read, env=CHECKED)
    assert warnings_of(done) == [("1", "1")]
    assert "bad cannot be compared: no values here" in done.output


def test_digest_depends_on_each_bit_and_on_the_type():
    values = np.arange(6, dtype=np.float32)
    changed = values.copy()
    changed.view(np.int32)[3] ^= 1
    others = [changed, values.astype(np.float64), values.reshape(2, 3), values[::-1], values[:5]]
    digests = {initial_weights.digest(v) for v in [values, *others]}
    assert len(digests) == 6
    assert initial_weights.digest(values.copy()) == initial_weights.digest(values)
    assert initial_weights.digest(np.empty(0)) != initial_weights.digest(np.empty((0, 1)))


def many():
    for i in range(40):
        announced(np.full(4, hvd.rank() if i % 2 else 0), f"w{i:02}")
    step(*(f"w{i:02}" for i in range(40)))


def test_many_parameters_make_few_lines():
    done = run_on_ranks(2, many, env=CHECKED)
    assert warnings_of(done) == [("20", "40")]
    assert "\n  w01, w03, w05, w07, w09, w11 and 14 more: one value on" in done.outputs[0]
