"""The one reader of lines and of frames: whole messages in, whole messages out, however the bytes arrive."""

import os
import random
import socket
import threading

import pytest

from hvd_core._base.messages import FrameBuffer, JsonLines, LineBuffer, ProtocolError, WriteQueue, frame


def chunks(data, rng):
    while data:
        count = rng.randint(1, 5)
        yield data[:count]
        data = data[count:]


def test_lines_however_they_arrive():
    rng = random.Random(3)
    for _ in range(100):
        sent = [rng.randbytes(rng.randint(0, 9)).replace(b"\n", b" ") for _ in range(rng.randint(0, 6))]
        lines, found = LineBuffer(), []
        for part in chunks(b"".join(line + b"\n" for line in sent) + b"rest", rng):
            found += lines.feed(part)
        assert found == sent
        assert lines.take_rest() == b"rest" and lines.rest == b""


def test_lines_one_at_a_time():
    lines = LineBuffer()
    lines.add(b"one\ntwo\nth")
    assert lines.has_line() and lines.next_line() == b"one"
    assert lines.next_line() == b"two" and lines.next_line() is None
    assert lines.rest == b"th"


def test_a_line_without_an_end_is_refused():
    lines = LineBuffer(longest=10)
    assert lines.feed(b"0123456789") == []
    with pytest.raises(ProtocolError):
        lines.feed(b"0")


@pytest.fixture
def channels():
    ends = socket.socketpair()
    with ends[0], ends[1]:
        yield [JsonLines(end) for end in ends]


def test_json_lines(channels):
    ours, theirs = channels
    ours.send({"kind": "ready", "text": "ü\n"})
    ours.send([1, None])
    assert theirs.receive(5) == {"kind": "ready", "text": "ü\n"}
    assert theirs.receive() == [1, None]
    with pytest.raises(TimeoutError):
        theirs.receive(0.01)
    ours.connection.sendall(b'{"a": ')
    with pytest.raises(TimeoutError):
        theirs.receive(0.01)
    ours.connection.sendall(b"1}\n")
    assert theirs.receive(5) == {"a": 1}
    ours.close()
    with pytest.raises(ConnectionError):
        theirs.receive(5)


def test_frames_however_they_arrive():
    rng = random.Random(5)
    for _ in range(100):
        sent = [(rng.randrange(256), rng.randbytes(rng.randint(0, 9))) for _ in range(rng.randint(0, 6))]
        frames, found = FrameBuffer(), []
        for part in chunks(b"".join(frame(*one) for one in sent), rng):
            found += frames.feed(part)
        assert found == sent


def test_a_frame_that_is_too_long_is_refused():
    with pytest.raises(ProtocolError, match="101 bytes of kind 3"):
        FrameBuffer(longest=100).feed(frame(3, bytes(101))[:5])


def test_a_queue_writes_in_order_to_a_slow_reader():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    queue = WriteQueue(writer, first=(b"f%d " % i for i in range(3)))
    large = bytes(1 << 20)
    assert queue.flush()
    queue.add(large)
    queue.add(b"end")
    assert not queue.flush() and queue.size > 0
    found = []
    thread = threading.Thread(target=lambda: found.append(read_all(reader)))
    thread.start()
    while not queue.flush():
        pass
    os.close(writer)
    thread.join()
    assert found == [b"f0 f1 f2 " + large + b"end"] and queue.size == 0


def read_all(descriptor):
    with open(descriptor, "rb") as file:
        return file.read()
