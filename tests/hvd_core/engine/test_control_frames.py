"""Frames of the control tree that an authenticated neighbour, or a program on the way, has made wrong: the job ends at
once, or within a stated time, and the cause names the neighbour."""

import os
import struct

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import meet
from hvd_core._runtime import current_job
from protocol_sim import ProtocolSim

SECOND = 1_000_000_000


def aborted(sim, rank):
    return [e[1] for e in sim.take_events(rank) if e[0] == "aborted"]


def settle(sim, ranks=2):
    for _ in range(6):
        for rank in range(ranks):
            sim.step(rank)
        for link in sim.in_flight():
            sim.deliver(*link)


@pytest.mark.parametrize("upwards", [True, False])
@pytest.mark.parametrize("head", [1 << 30, (64 << 20) + 1, (1 << 31) + (64 << 10) + 1, 0xFFFFFFFF])
def test_a_huge_frame_ends_the_job_when_it_is_announced(head, upwards):
    sim = ProtocolSim([-1, 0])
    sim.inject(1, upwards, head.to_bytes(4, "little"))
    rank, peer = (0, 1) if upwards else (1, 0)
    sim.step(rank)
    announced = f"{head & 0x7FFFFFFF} bytes were announced, which is too long"
    assert aborted(sim, rank) == [f"rank {rank}: rank {peer}: control message: {announced}"]


@pytest.mark.parametrize(
    ("begun", "what"),
    [
        (b"\x05\x00", "2 bytes of its length"),
        (b"\x64\0\0\0" + bytes(12), "12 of 100 bytes"),
        (b"\x64\0\0\x80", "0 of 100 bytes"),
    ],
)
def test_a_frame_that_does_not_end_ends_the_job(begun, what):
    sim = ProtocolSim([-1, 0])
    sim.inject(1, True, begun)
    for _ in range(30):
        sim.step(0)
        assert aborted(sim, 0) == [] and sim.next_deadline(0) == SECOND
        sim.advance(SECOND)
    sim.step(0)
    assert aborted(sim, 0) == [
        f"rank 0: rank 1: it has sent {what} of a control message, and nothing for 30 s"
    ]


def test_a_slow_neighbour_has_time_as_long_as_bytes_come():
    sim = ProtocolSim([-1, 0])
    for byte in [*(100).to_bytes(4, "little"), *bytes(90)]:
        sim.inject(1, True, bytes([byte]))
        for _ in range(20):
            sim.step(0)
            sim.advance(SECOND)
    assert aborted(sim, 0) == []


def test_the_time_in_which_a_process_was_stopped_does_not_count():
    sim = ProtocolSim([-1, 0])
    sim.inject(1, True, b"\x64\0\0\0")
    for _ in range(10):
        sim.step(0)
        sim.advance(3600 * SECOND)
    sim.step(0)
    assert aborted(sim, 0) == []


def exchange(sim, what, name="t"):
    """One operation of both ranks; `what` gets each piece that rank 1 sends and returns the pieces that arrive."""
    for rank in range(2):
        sim.submit(rank, name, 1, rank + 1)
    for _ in range(8):
        sim.advance(SECOND)
        for rank in range(2):
            sim.step(rank)
        for rank, upwards in sim.in_flight():
            if not upwards:
                sim.deliver(rank, upwards)
                continue
            for piece in what(bytes(sim.intercept(rank, upwards))):
                sim.inject(rank, upwards, piece)


def changed(piece, at):
    return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]


@pytest.fixture(params=[False, True], ids=["signed", "encrypted"])
def sim(request):
    return ProtocolSim([-1, 0], key="k" * 32, encrypted=request.param)


def test_signed_frames_arrive(sim):
    exchange(sim, lambda piece: [piece])
    for rank in range(2):
        assert [e[0] for e in sim.take_events(rank)] == ["execute"]


@pytest.mark.parametrize("encrypted", [False, True])
def test_encrypted_frames_cannot_be_read(encrypted):
    sim, seen = ProtocolSim([-1, 0], key="k" * 32, encrypted=encrypted), bytearray()

    def read(piece):
        seen.extend(piece)
        return [piece]

    exchange(sim, read, name="a name of a tensor")
    assert (b"a name of a tensor" in seen) != encrypted


@pytest.mark.parametrize("at", [4, 8, -17, -16, -1])
def test_a_signed_frame_that_was_changed_ends_the_job(sim, at):
    exchange(sim, lambda piece: [changed(piece, at % len(piece))])
    text = "rank 0: rank 1: control message: it was changed on the way, or another program has sent it"
    assert aborted(sim, 0) == [text] == aborted(sim, 1)


@pytest.mark.parametrize(
    ("what", "pieces"),
    [
        ("repeated", lambda piece: [piece, piece]),
        ("turned into an abort", lambda piece: [changed(piece, 3)[:3] + b"\x80" + piece[4:]]),
        ("invented", lambda piece: [struct.pack("<I", 3) + b"abc" + bytes(16), piece]),
        ("from another job", lambda piece: [piece[:-16] + bytes(16)]),
    ],
)
def test_signed_frames_of_a_stranger_end_the_job(sim, what, pieces):
    exchange(sim, pieces)
    assert ["changed on the way" in text for text in aborted(sim, 0)] == [True], what


def test_a_frame_that_was_held_back_ends_the_job(sim):
    held = []
    for step in range(3):
        for rank in range(2):
            sim.submit(rank, f"t{step}", 1, step * 2 + rank + 1)
        sim.advance(SECOND)
        for _ in range(4):
            for rank in range(2):
                sim.step(rank)
            for rank, upwards in sim.in_flight():
                if upwards and not held:
                    held.append(sim.intercept(rank, upwards))
                else:
                    sim.deliver(rank, upwards)
    assert ["changed on the way" in text for text in aborted(sim, 0)] == [True]


def the_other_end_of(rank):
    """A descriptor of this rank's control connection to its neighbour `rank`."""
    return next(link.sock_fd for link in current_job.world().links if link.peer == rank)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (struct.pack("<I", 5) + b"hello" + bytes(16), "changed on the way, or another program has sent it"),
        (struct.pack("<I", 1 << 30), "1073741824 bytes were announced, which is too long"),
    ],
)
@pytest.mark.ranks(2, env={"HOROVOD_CONTROL_TRANSPORT": "tcp"})
def test_bytes_that_another_program_puts_into_a_connection(sent, text):
    meet("up")  # a job may end while another rank is still in init()
    if hvd.rank() == 1:
        os.write(the_other_end_of(0), sent)
    with pytest.raises(hvd.HorovodInternalError, match=text):
        hvd.allreduce(np.ones(3), name="t")
