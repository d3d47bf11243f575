"""How the watcher takes the events of a rank, while some of them are only being written."""

import numpy as np

import observed_ranks as ranks
from harness import run_on_ranks
from hvd_core import flight_records
from hvd_core._observe.watch.rank_figures import ENTRY, MEMBERS, SUBMITTED, RankFigures
from hvd_core._observe.watch.shared_rings import SharedRing


def test_a_record_that_is_being_written_and_those_behind_it_are_taken_later():
    (memory, _), _ = run_on_ranks(2, ranks.rings_in_memory, 20).results
    memory = bytearray(memory)
    header = flight_records.header_of(memory)
    written = flight_records.written_in(memory)
    stamps = np.frombuffer(memory, np.uint32)[header.records_at // 4 :: 10]
    ring = SharedRing(memoryview(memory))
    held = written - 4
    stamps[held] = 0
    first, lost = ring.take()
    assert (len(first), lost) == (held, 0)
    assert ring.take() == ([], 0)
    stamps[held] = held + 1
    rest, lost = ring.take()
    assert (len(rest), lost) == (4, 0)
    whole = SharedRing(memoryview(memory))
    assert whole.take() == (first + rest, 0)


def test_a_batch_that_is_read_in_two_parts_has_all_its_members():
    texts = {1: "allreduce.a", 2: "allreduce.b"}
    entered = []
    figures = RankFigures(texts.get, lambda *batch: entered.append(batch), lambda span: None)
    figures.take([(SUBMITTED, 1, 0, 10, 1, 0, 4, 0), (SUBMITTED, 1, 0, 30, 2, 0, 4, 0)])
    figures.take([(ENTRY, 1, 0, 50, 1, 2, 7, 0)])
    assert entered == []
    figures.take([(MEMBERS, 0, 0, 50, 2, 0, 0, 0)])
    assert entered == [((0, "allreduce.a", 0), 30, 50)]
