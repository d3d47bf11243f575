"""The flight recorder: what it keeps, that it outlives a killed rank, and how it is read."""

import os
import struct
from pathlib import Path

import observed_ranks as ranks
from harness import run_on_ranks, run_to_the_end
from hvd_core import flight_records
from hvd_core._base import native
from hvd_core._cli.command import run as hvd
from hvd_core._observe import settings


def kinds(ring):
    return [event.kind for event in ring.events]


def test_the_reader_knows_the_kinds_of_the_engine():
    assert native.load().event_kinds == flight_records.KINDS


def test_the_ring_of_a_killed_rank_is_saved_by_its_neighbour(tmp_path, capsys):
    flight = tmp_path / "flight"
    for victim in (0, 1):
        run_to_the_end(
            2, ranks.killed_while_the_other_waits, victim, folder=tmp_path / f"marks{victim}", code=137,
            env={"HOROVOD_FLIGHT_RECORDER_DIR": str(flight)},
        )  # fmt: skip
        folder = flight_records.jobs(flight)[0]
        both = flight_records.load_job(folder)
        assert [(ring.rank, ring.size, ring.in_order) for ring in both] == [(0, 2, False), (1, 2, False)]
        dead, living = both[victim], both[1 - victim]
        assert [f"{event.name} {event.what}" for event in dead.pending()] == [
            f"allreduce.last of {victim} float64|[7]"
        ]
        assert "aborted" not in kinds(dead)
        assert f"rank {victim}" in next(event.name for event in living.events if event.kind == "aborted")
        assert "SHM_ALLREDUCE" in {event.name for event in dead.events if event.kind == "step"}
        entry = next(event for event in dead.events if event.kind == "entry")
        after = [event.kind for event in dead.events if event.number > entry.number and event.a == entry.a]
        assert after[:2] == ["begin", "step"]
        assert "done" in after
        assert hvd(["flight", str(folder)]) == 0
        shown = capsys.readouterr().out
        assert f"rank {victim} of 2, pid {dead.pid}" in shown
        assert f"not done: 'allreduce.last of {victim}'" in shown
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_a_rank_alone_on_its_host_leaves_its_ring_too(tmp_path):
    env = {
        "HOROVOD_FLIGHT_RECORDER_DIR": str(tmp_path / "flight"),
        "HOROVOD_SIMULATED_HOSTS": "0,1",
    }
    run_to_the_end(
        2, ranks.killed_while_the_other_waits, 1, folder=tmp_path / "marks", code=137, env=env
    )  # fmt: skip
    (folder,) = flight_records.jobs(tmp_path / "flight")
    dead = flight_records.load_job(folder)[1]
    assert [event.name for event in dead.pending()] == ["allreduce.last of 1"]


def test_an_orderly_end_leaves_nothing(tmp_path):
    for hosts in ("0,0", "0,1"):
        env = {"HOROVOD_FLIGHT_RECORDER_DIR": str(tmp_path / "flight"), "HOROVOD_SIMULATED_HOSTS": hosts}
        run_on_ranks(2, ranks.one_rank_fails_a_call, env=env)
        assert flight_records.jobs(tmp_path / "flight") == []


def test_it_can_be_turned_off(tmp_path):
    env = {"HOROVOD_FLIGHT_RECORDER": "0"}
    assert run_on_ranks(2, ranks.rings_in_memory, env=env).results == [[], []]


def test_another_process_can_read_the_rings_of_a_host():
    for found in run_on_ranks(2, ranks.rings_in_memory).results:
        both = [flight_records.read_ring(memory) for memory in found]
        assert [ring.rank for ring in both] == [0, 1]
        for ring in both:
            assert "allreduce.shared" in {event.name for event in ring.events if event.kind == "submitted"}
            assert ring.pending() == []
            assert ring.wall_offset is not None


def test_a_long_job_keeps_the_last_events():
    (memory, _), _ = run_on_ranks(2, ranks.rings_in_memory, 2000).results
    ring = flight_records.read_ring(memory)
    assert ring.written > 4096
    assert len(ring.events) >= 4090
    numbers = [event.number for event in ring.events]
    assert numbers == sorted(numbers)
    assert all(event.name for event in ring.events if event.kind == "submitted")


def test_files_that_are_no_ring_are_refused(tmp_path, capsys):
    path = tmp_path / "rank-0.flight"
    path.write_bytes(b"hvdring1" + bytes(500))
    assert hvd(["flight", str(path)]) == 2
    assert "reads version 1" in capsys.readouterr().err
    path.write_bytes(b"something else")
    assert hvd(["flight", str(path)]) == 2
    assert f"{path}: these bytes are not a flight recorder" in capsys.readouterr().err
    assert hvd(["flight", str(tmp_path / "none")]) == 2


def test_a_job_that_still_runs_is_not_forgotten(tmp_path):
    # No process can have the number of the second one.
    no_process = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    header = struct.Struct("<8s7II")
    for i, pid in enumerate((os.getpid(), no_process)):
        (tmp_path / f"old{i}").mkdir()
        ring = header.pack(b"hvdring1", *[1] * 7, pid).ljust(256, b"\0")
        (tmp_path / f"old{i}" / "rank-0.flight").write_bytes(ring)
        os.utime(tmp_path / f"old{i}", (i, i))
    for i in range(32):
        (tmp_path / f"job{i}").mkdir()
    settings._forget_old_jobs(tmp_path)
    assert (tmp_path / "old0").exists()
    assert not (tmp_path / "old1").exists()


def test_the_oldest_jobs_are_forgotten(tmp_path):
    for i in range(40):
        (tmp_path / f"job{i}").mkdir()
        os.utime(tmp_path / f"job{i}", (i, i))
    settings._forget_old_jobs(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"job{i}" for i in range(8, 40))
