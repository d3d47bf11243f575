"""The timeline that ranks write: the original's events, on all ranks at one point of the log, valid at any time."""

import json
from collections import Counter

import pytest

import observed_ranks as ranks
import timeline_rules
from harness import run_on_ranks, run_to_the_end
from harness.frameworks import horovodrun
from hvd_core._observe import timeline_files

OPERATIONS = {
    "allreduce.one": ("ALLREDUCE", "float32", "[3]"),
    "allgather.two": ("ALLGATHER", "int32", "[*, 2]"),
    "broadcast.three": ("BROADCAST", "float64", "[4]"),
    "alltoall.four": ("ALLTOALL", "float64", "[*]"),
    "reducescatter.five": ("REDUCESCATTER", "float64", "[6]"),
    "allreduce.six": ("ADASUM", "float64", "[3]"),
}


def events_of(path, complete=True):
    events = json.loads(path.read_text())
    assert timeline_rules.faults(events, complete) == []
    return events


def of_tensor(events, name):
    """(phase, name) of the events of a tensor, without the record of its name."""
    pids = [pid for pid, tensor in timeline_files.tensor_names(events).items() if tensor == name]
    assert len(pids) == 1, (name, timeline_files.tensor_names(events))
    return [e for e in events if e.get("pid") == pids[0] and e["ph"] != "M"]


def carried_out(events):
    """The tensors with an allreduce in the file. Another rank may be ready for a later one, which is there too."""
    names = timeline_files.tensor_names(events)
    return {names[e["pid"]] for e in events if e.get("name") == "ALLREDUCE"}


def test_each_operation_has_the_events_of_the_original(tmp_path):
    path = tmp_path / "t.json"
    run_on_ranks(2, ranks.every_operation, env={"HOROVOD_TIMELINE": str(path)})
    events = events_of(path)
    assert list(events[0]) == ["name", "ph", "pid", "args"]
    assert events[0]["args"].keys() == {"start_time_since_epoch_in_micros"}
    assert events[1] == {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}}
    for name, (label, dtype, shape) in OPERATIONS.items():
        mine = of_tensor(events, name)
        head = [(e["ph"], e.get("name")) for e in mine]
        assert head[0] == ("B", f"NEGOTIATE_{label}"), (name, head)
        assert sorted(head[1:3]) == [("X", "0"), ("X", "1")], (name, head)
        assert head[3:5] == [("E", None), ("B", label)], (name, head)
        assert any(word and word.startswith("SHM_") for _, word in head[5:]), (name, head)
        assert mine[-1]["ph"] == "E"
        assert mine[-1]["args"] == {"dtype": dtype, "shape": shape}
    assert of_tensor(events, "barrier.noname.0")[0]["name"] == "NEGOTIATE_BARRIER"
    for i in range(12):
        assert Counter(e.get("name") for e in of_tensor(events, f"allreduce.grad.{i}"))["ALLREDUCE"] == 2
    group = of_tensor(events, "grouped_allreduce.group")[-1]
    assert group["args"] == {"dtype": "float64", "shape": "[2], [1, 3]"}
    waits = [e["args"]["tensor"] for e in events if e.get("name") == "WAIT"]
    assert waits  # an operation that is done at once needs no waiting
    assert not [e for e in events if e["ph"] == "i"]


def test_known_batches_show_when_each_rank_was_ready(tmp_path):
    path = tmp_path / "t.json"
    run_on_ranks(2, ranks.several_steps, 40, env={"HOROVOD_TIMELINE": str(path)})
    events = events_of(path)
    for i in range(12):
        count = Counter(e.get("name") for e in of_tensor(events, f"allreduce.grad.{i}"))
        assert (count["ALLREDUCE"], count["NEGOTIATE_ALLREDUCE"], count["0"], count["1"]) == (40, 40, 40, 40)


def test_every_rank_writes_its_own_file(tmp_path):
    env = {"HOROVOD_TIMELINE": str(tmp_path / "t.json"), "HOROVOD_TIMELINE_ALL_RANKS": "1"}
    run_on_ranks(2, ranks.every_operation, env=env)
    env = {"HOROVOD_TIMELINE": str(tmp_path / "of-{rank}.json")}
    run_on_ranks(2, ranks.every_operation, env=env)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["of-0.json", "of-1.json", "t.json", "t.rank1.json"]
    for name, rank in (("t.json", 0), ("t.rank1.json", 1), ("of-0.json", 0), ("of-1.json", 1)):
        events = events_of(tmp_path / name)
        assert timeline_files.about_rank(events)["rank"] == rank
        assert any(timeline_files.is_rank_tick(e) for e in events) is (rank == 0)
        assert set(OPERATIONS) <= set(timeline_files.tensor_names(events).values())


def test_timelines_in_the_middle_of_a_job(tmp_path):
    found = run_on_ranks(2, ranks.parts_of_a_job, str(tmp_path)).results
    assert found[0] is True
    for name, tensor in (("first", "in the first"), ("second", "in the second"), ("third", "in the third")):
        events = events_of(tmp_path / f"{name}.json")
        assert carried_out(events) == {f"allreduce.{tensor}"}
        assert any(e.get("name") == "CYCLE_START" for e in events) is (name == "first")


def test_a_program_may_switch_it_on_rank_0_alone(tmp_path):
    path = tmp_path / "t.json"
    run_on_ranks(2, ranks.on_rank_0_alone, str(path))
    assert carried_out(events_of(path)) == {"allreduce.seen"}


def test_a_file_that_cannot_be_made(tmp_path):
    outcome = run_on_ranks(2, ranks.refused, str(tmp_path / "missing" / "t.json"))
    assert not (tmp_path / "missing").exists()
    assert "".join(outcome.outputs) == ""
    env = {"HOROVOD_TIMELINE": str(tmp_path / "missing" / "t.json"), "HOROVOD_LOG_HIDE_TIME": "1"}
    outputs = run_on_ranks(2, ranks.ends_in_order, env=env).outputs
    assert outputs == [
        f"[0] horovod WARNING: no timeline is written: {tmp_path}/missing/t.json: No such file or directory\n",
        "",
    ]


def test_a_straggler_is_found(tmp_path):
    path = tmp_path / "t.json"
    run_on_ranks(3, ranks.late_rank, 1, str(path), env={"HOROVOD_TIMELINE": str(path)})
    made = timeline_files.summarize(events_of(path))
    assert (made.stragglers[0].rank, made.stragglers[0].last) == (1, 4)
    assert made.exposed > 0
    assert {t.name for t in made.tensors} == {f"allreduce.t{i}" for i in range(4)}


def test_its_size_is_bounded(tmp_path):
    path, most = tmp_path / "t.json", 40_000
    env = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MAX_BYTES": str(most)}
    run_on_ranks(2, ranks.several_steps, 60, env=env)
    files = [tmp_path / "t.before.json", path]
    assert sum(file.stat().st_size for file in files) <= most
    last = events_of(files[0])[-1]["ts"]
    events = events_of(path)
    assert "allreduce.grad.0" in timeline_files.tensor_names(events_of(files[0])).values()
    started = [
        timeline_files.about_rank(events_of(file))["start_in_clock_of_rank_0_in_micros"] for file in files
    ]
    assert started[0] == started[1], "times of both files count from the same moment"
    assert all(e["ts"] >= last for e in events if e["ph"] == "B")


def test_a_killed_rank_leaves_a_valid_file(tmp_path):
    path = tmp_path / "t.json"
    run_to_the_end(
        2, ranks.killed_while_the_other_waits, 0, str(path), folder=tmp_path / "marks", code=137,
        env={"HOROVOD_TIMELINE": str(path), "HOROVOD_FLIGHT_RECORDER_DIR": str(tmp_path / "flight")},
    )  # fmt: skip
    events = events_of(path, complete=False)
    assert {"allreduce.together", "allreduce.last of 0"} <= set(timeline_files.tensor_names(events).values())


@pytest.mark.parametrize(
    "options", [["--timeline-filename", "FILE", "--timeline-mark-cycles"], ["--config-file", "YAML"]]
)
def test_the_launcher_turns_it_on(tmp_path, options):
    path, yaml = tmp_path / "t.json", tmp_path / "job.yaml"
    yaml.write_text(f"timeline:\n  filename: {path}\n  mark_cycles: true\n")
    words = [{"FILE": str(path), "YAML": str(yaml)}.get(word, word) for word in options]
    printed = run_to_the_end(2, ranks.ends_in_order, command=horovodrun(2, *words))
    assert "without effect" not in printed
    events = events_of(path)
    assert "allreduce.fine" in timeline_files.tensor_names(events).values()
    assert any(e.get("name") == "CYCLE_START" and e["s"] == "g" for e in events)
