"""Process sets that change while a rank has joined: the rank takes part, and its objects of removed sets are invalid."""

import numpy as np
import pytest

import hvd_core as hvd
from hvd_core._runtime import current_job

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


@pytest.mark.ranks(3, env=DYNAMIC)
def test_sets_that_change_while_a_rank_has_joined():
    pair, kept = hvd.add_process_set([0, 1]), hvd.add_process_set([0, 2])
    if hvd.rank() == 0:
        hvd.join()
        assert pair.process_set_id is None, "it would stand for the ranks of another set"
    else:
        assert hvd.remove_process_set(pair)
        other = hvd.add_process_set([1, 2])
        assert other.process_set_id == 1
        assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=other) == 2
        hvd.join()
    assert kept.process_set_id == 2
    if hvd.rank() != 1:
        assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=kept) == 2
    assert current_job.engine().process_sets()[1] == [1, 2]
    hvd.barrier()
