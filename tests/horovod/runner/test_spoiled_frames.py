"""Spoiled frames of an agent: the launcher reads what can be read, or says that the agent sent invalid data. A program
that writes the bytes of a file stands where the remote shell is."""

import json
import random
import selectors
import struct
import time

import pytest

from harness.spoiled import spoil
from horovod._runner.protocol import MAGIC, Kind, output_frame
from horovod._runner.remote_ranks import RemoteRanks
from horovod._runner.site import RankSpec
from hvd_core._base.messages import FrameBuffer, ProtocolError, frame


class Heard:
    """Takes what the launcher would print."""

    def __init__(self):
        self.events, self.bytes = [], 0

    def output(self, rank, stream, data):
        self.bytes += len(data)

    def event(self, site, event):
        self.events.append(event)

    def shell_output(self, site, data):
        pass


def read_from(path, content):
    """The RemoteRanks that has read `content` to its end."""
    path.write_bytes(content)
    site, heard = (
        RemoteRanks("far", ["cat", str(path)], [RankSpec(0, ["x"], {})], {}, "tcp://127.0.0.1:1"),
        Heard(),
    )
    with selectors.DefaultSelector() as selector:
        site.open(selector, heard)
        end = time.monotonic() + 60
        while not site.over and time.monotonic() < end:
            for key, _ in selector.select(0.5):
                key.data()
            site.advance(time.monotonic())
        site.close()
    return site, heard


READY = frame(Kind.READY, json.dumps({"host": "far", "pid": 7, "python": "/p"}).encode())
EVENT = frame(Kind.EVENT, json.dumps({"event": "exit", "rank": 0, "code": 0}).encode())
RIGHT = [READY, output_frame(0, 1, b"text\n"), EVENT, frame(Kind.BEAT), frame(Kind.END)]


def test_right_frames(tmp_path):
    site, heard = read_from(tmp_path / "frames", MAGIC + b"".join(RIGHT))
    assert site.failure is None and site.agent == "process 7 on far, /p"
    assert heard.bytes == 5 and [event["event"] for event in heard.events] == ["exit"]


@pytest.mark.parametrize(
    "bad",
    [
        frame(Kind.OUTPUT, b"\0"),
        frame(Kind.RESULT, b""),
        frame(Kind.EVENT, b"7"),
        frame(Kind.EVENT, b'{"event": "lost", "ranks": 5}'),
        frame(Kind.EVENT, b"[" * 100_000),
        frame(Kind.READY, b"[]"),
        frame(Kind.READY, b"\xff"),
        struct.pack("<IB", 1 << 31, 18),
        frame(99, b""),
    ],
)
def test_an_impossible_frame_is_told(bad, tmp_path):
    site, _ = read_from(tmp_path / "frames", MAGIC + bad)
    assert "the agent sent invalid data (" in site.describe_failure()


def test_what_an_agent_says_cannot_control_the_terminal(tmp_path):
    site, _ = read_from(tmp_path / "frames", MAGIC + frame(Kind.REFUSED, b"\x1b[2Jgone\nhorovodrun: forged"))
    assert site.describe_failure().startswith("host 'far': \\x1b[2Jgone\n  horovodrun: forged")


@pytest.mark.parametrize("seed", range(6))
def test_spoiled_frames_end_in_an_answer(seed, tmp_path):
    rng = random.Random(seed)
    for _ in range(5):
        pieces = [spoil(rng, piece) if rng.random() < 0.3 else piece for piece in RIGHT * 20]
        site, _ = read_from(tmp_path / "frames", MAGIC + b"".join(pieces))
        assert site.over


def test_spoiled_streams_make_frames_or_an_error():
    rng = random.Random(17)
    refused = frames = 0
    for _ in range(3000):
        stream = spoil(rng, b"".join(rng.choices(RIGHT, k=4)))
        incoming = FrameBuffer()
        try:
            while stream:
                at = rng.randint(1, 40)
                frames += len(incoming.feed(stream[:at]))
                stream = stream[at:]
        except ProtocolError:
            refused += 1
    assert refused > 100 and frames > 3000
