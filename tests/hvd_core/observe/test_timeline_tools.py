"""hvd timeline: merging the files of ranks, figures, and the rules that the files are checked by."""

import json

import pytest

import observed_ranks as ranks
import timeline_rules
from harness import run_on_ranks
from hvd_core._cli.command import run as hvd
from hvd_core._observe import timeline_files

START = {"start_time_since_epoch_in_micros": 1_000_000}


def record(name, phase, ts=0, pid=1, **more):
    return {"name": name, "ph": phase, "ts": ts, "pid": pid, **more}


def file_of(rank, events, start=0, names=("allreduce.a",)):
    """A timeline as a rank writes it."""
    facts = {"rank": rank, "size": 2, "host": "h", "start_in_clock_of_rank_0_in_micros": start}
    head = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": START},
        {"name": "horovod_rank", "ph": "M", "pid": 0, "args": facts},
    ]
    head += [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
        for pid, name in enumerate(names, 1)
    ]
    return [*head, *events]


def operation(at, ready, took=100, pid=1):
    """An allreduce of 2 x 3 float32 whose ranks are ready at the times `ready`."""
    end = max(ready)
    ticks = [
        record(str(rank), "X", ts, pid, dur=0) for rank, ts in sorted(enumerate(ready), key=lambda x: x[1])
    ]
    return [
        record("NEGOTIATE_ALLREDUCE", "B", at, pid),
        *ticks,
        {"ph": "E", "ts": end, "pid": pid},
        record("ALLREDUCE", "B", end, pid),
        record("SHM_ALLREDUCE", "B", end + 10, pid),
        {"ph": "E", "ts": end + took - 10, "pid": pid},
        {"ph": "E", "ts": end + took, "pid": pid, "args": {"dtype": "float32", "shape": "[2, 3]"}},
    ]


def test_figures_of_a_known_timeline():
    events = [*operation(0, [5, 45]), *operation(1000, [1000, 1020])]
    # The first operation, from 45 to 145, is waited for from 20 to 100 by one caller and from 90 to 120 by another.
    events += [record("WAIT", "X", 20, 0, tid=0, dur=80), record("WAIT", "X", 90, 0, tid=1, dur=30)]
    made = timeline_files.summarize(file_of(0, events))
    assert (made.rank, made.size, made.span) == (0, 2, 1120)
    assert (made.communication, made.exposed, made.hidden) == (200, 100, 125)
    assert [(s.rank, s.last, s.median_behind) for s in made.stragglers] == [(1, 2, 30), (0, 0, 0)]
    (tensor,) = made.tensors
    assert (tensor.name, tensor.operations, tensor.running, tensor.negotiating) == ("allreduce.a", 2, 200, 65)
    assert tensor.bytes == 2 * 24
    assert made.activities == {"SHM_ALLREDUCE": 160}


def test_merging_puts_ranks_on_one_clock(tmp_path):
    for rank, start in ((0, 5000), (1, 5300)):
        events = operation(0, [10, 20])
        (tmp_path / f"{rank}.json").write_text(json.dumps(file_of(rank, events, start)))
    out = tmp_path / "all.json"
    assert hvd(["timeline", "merge", str(tmp_path / "[01].json"), "-o", str(out)]) == 0
    events = timeline_files.load(out)
    assert timeline_rules.faults(events) == []
    timed = [e for e in events if e["ph"] != "M"]
    assert timed == sorted(timed, key=lambda e: e["ts"])
    assert [e["ts"] for e in timed if e.get("name") == "NEGOTIATE_ALLREDUCE"] == [0, 300]
    assert {e["pid"] for e in timed} == {0, 1}
    names = {(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert names == {(0, "allreduce.a"), (1, "allreduce.a")}
    with pytest.raises(ValueError, match="was merged"):
        timeline_files.summarize(events)


def test_merging_what_ranks_have_written(tmp_path):
    run_on_ranks(2, ranks.every_operation, env={"HOROVOD_TIMELINE": str(tmp_path / "{rank}.json")})
    timeline_files.merge([tmp_path / "0.json", tmp_path / "1.json"], tmp_path / "all.json")
    events = timeline_files.load(tmp_path / "all.json")
    assert timeline_rules.faults(events) == []
    names = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert names.count("allgather.two") == 2
    assert names.count("waiting callers") == 2
    # No rank's operation can end before every rank was ready, on the common clock.
    ends = [e["ts"] for e in events if e["ph"] == "E" and e.get("args", {}).get("shape") == "[3]"]
    ready = max(e["ts"] for e in events if timeline_files.is_rank_tick(e) and e["pid"] == 0 and e["tid"] == 2)
    assert len(ends) == 4
    assert ready <= min(ends[:2]) + 1  # both are cut to whole microseconds


def test_a_summary_is_printed(tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(file_of(0, operation(0, [5, 45]))))
    assert hvd(["timeline", "summarize", str(path)]) == 0
    shown = capsys.readouterr().out
    for part in (
        "rank 0 of 2",
        "exposed communication",
        "The last rank to be ready",
        "allreduce.a",
        "SHM_ALLREDUCE",
    ):
        assert part in shown, shown
    assert hvd(["timeline", "summarize", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stragglers"][0]["median_behind"] == 40


def test_a_file_that_is_cut_off_is_read_to_its_last_event(tmp_path):
    path = tmp_path / "t.json"
    lines = [json.dumps(e) for e in file_of(0, operation(0, [5, 45]))]
    path.write_text("[\n" + ",\n".join(lines) + ',\n{"name":"ALLRE')
    assert len(timeline_files.load(path)) == len(lines)
    path.write_text("no timeline")
    assert hvd(["timeline", "summarize", str(path)]) == 2


@pytest.mark.parametrize(
    "event, fault",
    [
        (record("a", "Q"), "'ph' must be one of"),
        (record(None, "B"), "'name' must be a text"),
        (record("a", "B", -1), "'ts' must be"),
        (record("a", "X"), "'dur' must be"),
        (record("a", "i"), "'s' must be"),
        ({"ph": "E", "ts": 1, "pid": 1}, "did not begin"),
        (record("a", "B", 1), "did not end"),
        (record("a", "B", 1, pid="x"), "'pid' must be"),
    ],
)
def test_the_rules_find_their_faults(event, fault):
    assert fault in timeline_rules.faults([event])[0]


def test_the_rules_find_times_that_go_back():
    events = [record("a", "B", 5), {"ph": "E", "ts": 4, "pid": 1}]
    assert "the time goes back" in timeline_rules.faults(events)[0]
