"""The program of an elastic job with process sets of every kind, on NumPy arrays, and operations that look at ranks."""

import gc
import time
import weakref

import numpy as np

import elastic_programs
import hvd_core
from horovod.common import elastic
from horovod.common.exports import init, rank, shutdown, size
from horovod.common.objects import broadcast_object
from horovod.common.process_sets import ProcessSet, add_process_set, remove_process_set
from hvd_core._runtime import current_job

FIRST_TWO = ProcessSet([0, 1])
EVEN = ProcessSet(lambda size: range(0, size, 2))
FOUNDERS = ProcessSet(elastic.workers([0, 1]))
FOURTH = ProcessSet([0, 3])
REMOVED = ProcessSet([0, 2])


def sum_of(values, members, process_set, name):
    """Sums `values` of the members, on which the ranks agree, and compares the result."""
    if rank() in members:
        found = hvd_core.allreduce(
            np.full(3, values[rank()]), op=hvd_core.Sum, name=name, process_set=process_set
        )
        assert found.tolist() == [sum(values[r] for r in members)] * 3, (name, found)


def check_ended(engines):
    """Nothing keeps the engine of a world that has ended."""
    gc.collect()
    assert [reference() for reference in engines] == [None] * len(engines)


def check_removals():
    """Each set ends alone, also where another one has the same members."""
    remove_process_set(REMOVED)
    assert REMOVED.process_set_id is None and remove_process_set(REMOVED) is False
    for twin in (ProcessSet(lambda size: [0, 1]), ProcessSet([0, 1])):
        add_process_set(twin)
        assert twin.process_set_id == FIRST_TWO.process_set_id
        assert remove_process_set(twin) is True and twin.process_set_id is None
    kept = add_process_set([0, size() - 1]) if size() > 2 else FIRST_TWO
    sum_of([1.0] * size(), kept.ranks, kept, "kept")
    if size() > 2:
        remove_process_set(kept)


def check_sets(ids, added, within):
    values = {r: 10.0 * number + 1 for r, number in enumerate(ids)}
    assert FIRST_TWO.process_set_id == (1 if size() > 2 else 0) and FIRST_TWO.ranks == [0, 1]
    sum_of(values, [0, 1], FIRST_TWO, "first")
    even = list(range(0, size(), 2))
    assert EVEN.ranks == even, EVEN
    sum_of(values, even, EVEN, "even")
    if 1 in ids:
        sum_of(values, [ids.index(0), ids.index(1)], FOUNDERS, "founders")
    else:
        assert FOUNDERS.process_set_id is None
        refused("Workers([0, 1])", FOUNDERS)
    if size() < 4:
        refused("[0, 3]", FOURTH)
    assert REMOVED.process_set_id is None
    sum_of(values, [1], added, "added before")
    sum_of(values, list(within.ranks), within, "added within")


def refused(text, process_set):
    try:
        hvd_core.allreduce(np.zeros(1), name="refused", process_set=process_set)
    except ValueError as error:
        assert text in str(error) and "not all of its members" in str(error), error
    else:
        raise AssertionError("a set without its members was used")


def check_operations(names):
    """Join, Adasum, a group and objects."""
    ones = [np.ones(4), np.full(2, 2.0)]
    reduced = hvd_core.grouped_allreduce(ones, op=hvd_core.Sum, name="group")
    assert [part.tolist() for part in reduced] == [[float(size())] * 4, [2.0 * size()] * 2]
    same = hvd_core.allreduce(np.arange(1.0, 9.0), op=hvd_core.Adasum, name="adasum")
    np.testing.assert_allclose(same, np.arange(1.0, 9.0), rtol=1e-6)  # equal vectors are averaged
    if rank() > 0:
        averaged = hvd_core.allreduce(np.full(2, 6.0), name="before join")
        np.testing.assert_allclose(averaged, [6.0 * (size() - 1) / size()] * 2)  # as in Horovod
    hvd_core.join()
    elastic_programs.same_everywhere(np.int64(len(names)), "names")


def sets():
    """Three ranks, then two, then three: the sets come back, on new ranks too."""
    init(process_sets=[FIRST_TWO, EVEN, FOUNDERS, FOURTH])
    # Before the training function: a new rank does it alone.
    assert remove_process_set(add_process_set([0])) is True
    added = add_process_set([1])
    add_process_set(REMOVED)
    engines = []
    state = elastic.ObjectState(
        lambda value: broadcast_object(value, 0, name="values"), rank, steps=0, worlds=[]
    )

    @lambda function: elastic.run_fn(function, elastic.restart)
    def train(state):
        check_ended(engines)
        engines.append(weakref.ref(current_job.engine()))
        check_removals()
        within = add_process_set([1, size() - 1]) if size() > 2 else FIRST_TWO
        ids = [int(i) for i in hvd_core.allgather(np.array([elastic.worker_id()]), "ids")]
        check_sets(ids, added, within)
        steps = elastic_programs.Steps()
        while steps.go_on():
            check_sets(ids, added, within)
            check_operations(state.worlds)
            state.steps += 1
            time.sleep(0.002)
            state.commit()
        return state.steps

    elastic_programs.done(train(state), rank(), size())
    shutdown()
    check_ended(engines)


if __name__ == "__main__":
    elastic_programs.main(globals())
