"""The ranks' output arrives complete, with the rank in front of each line, and in the files."""

import os
import re
import subprocess
import threading
import tty

import pytest

import output_programs
import runner_ranks
from horovod._runner.output import RankStream, Sink
from launchers import program_words


def read_until(process, shown, end):
    """The output of the job, `shown` and more, when it ends with `end`."""
    while not shown.endswith(end):
        more = os.read(process.stdout.fileno(), 1000)
        assert more, shown
        shown += more
    return shown


def test_lines_of_four_ranks_do_not_mix(launcher):
    done = launcher.python(4, runner_ranks.chatter)
    assert done.returncode == 0
    for text, name, fill in ((done.stdout, "stdout", "x97"), (done.stderr, "stderr", "e89")):
        per_rank = {rank: [] for rank in range(4)}
        for line in text.splitlines():
            prefix, rank, rest = re.fullmatch(rf"(\[(\d)\]<{name}>:)(.*)", line).groups()
            assert prefix
            per_rank[int(rank)].append(rest)
        for rank, lines in per_rank.items():
            period = int(fill[1:])
            assert lines == [f"{rank}:{i}:" + fill[0] * (i % period) for i in range(300)]


def test_a_carriage_return_stays_within_the_line(launcher):
    done = launcher.python(1, output_programs.returns_and_line_ends)
    prefix = "[0]<stdout>:"
    assert done.stdout == f"{prefix} 10%\r 20%\r\n{prefix}\n{prefix}30%\n"


def test_cr_lf_in_two_writes_is_one_end(launcher):
    prefix = "[0]<stdout>:"
    expected = f"{prefix}one\r\n{prefix}two\r\r\n{prefix}three\n"
    assert launcher.python(1, output_programs.returns_apart_from_line_ends).stdout == expected


def test_partial_line_is_shown_and_continued(launcher):
    process = launcher.start_python(1, output_programs.part_of_a_line)
    shown = read_until(process, b"", b"wait")
    (launcher.folder / "seen").touch()
    rest, _ = process.communicate(timeout=100)
    # An unfinished line is ended, so that the next message starts a new line.
    assert (shown + rest).decode() == "[0]<stdout>:wait done\n[0]<stdout>:last\n"


def test_partial_line_of_one_rank_does_not_swallow_another(launcher):
    process = launcher.start_python(2, output_programs.part_of_a_line_beside_another_rank)
    shown = read_until(process, b"", b"epoch 1 ...")
    (launcher.folder / "half").touch()
    shown = read_until(process, shown, b"hello\n")
    (launcher.folder / "other").touch()
    rest, _ = process.communicate(timeout=100)
    lines = (shown + rest).decode().splitlines()
    assert lines == ["[0]<stdout>:epoch 1 ...", "[1]<stdout>:hello", "[0]<stdout>: ok"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_utf8_split_between_writes(launcher, unbuffered):
    process = launcher.start_python(
        1, output_programs.parts_of_characters, env={"PYTHONUNBUFFERED": unbuffered}
    )
    seen = []
    while chunk := os.read(process.stdout.fileno(), 1000):
        seen.append(chunk)
    process.wait(timeout=100)
    whole = b"".join(seen)
    assert whole == "[0]<stdout>:grüße 🎉 日本\n[0]<stdout>:".encode() + b"\xff\xfe bad\n"


def test_binary_and_very_long_lines_pass_unchanged(launcher):
    process = launcher.start_python(1, output_programs.a_long_line_of_all_bytes)
    out, _ = process.communicate(timeout=100)
    assert out == b"[0]<stdout>:" + bytes(b for b in range(256) if b not in (10, 13)) * 4000 + b"\n"


def test_timestamps(launcher):
    for flag in ("-prefix-timestamp", "--prefix-output-with-timestamp"):
        done = launcher.run("-np", 1, flag, "echo", "x")
        assert re.fullmatch(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:x\n", done.stdout)


def test_files(launcher):
    done = launcher.python(
        2, output_programs.a_line_and_a_part_of_an_error, "--output-filename", "logs/run 1"
    )
    assert sorted(done.stdout.split("\r\n")) == ["", "[0]<stdout>:out 0", "[1]<stdout>:out 1"]
    for rank in range(2):
        folder = launcher.folder / "logs" / "run 1" / f"rank.{rank}"
        assert (folder / "stdout").read_bytes() == f"out {rank}\r\n".encode()
        assert (folder / "stderr").read_bytes() == f"err {rank}".encode()


def test_names_of_files_sort(launcher):
    done = launcher.run("-np", 11, "--output-filename", "logs", "true")
    assert done.returncode == 0
    names = sorted(path.name for path in (launcher.folder / "logs").iterdir())
    assert names == [f"rank.{rank:02d}" for rank in range(11)]


def test_folder_that_cannot_be_made(launcher):
    (launcher.folder / "file").write_text("")
    done = launcher.run("-np", 2, "--output-filename", "file/logs", "true")
    assert done.returncode == 2
    assert "Not a directory" in done.stderr
    assert launcher.wait_for_none() == []


def test_progress_bar_between_other_lines(launcher):
    done = launcher.python(2, runner_ranks.show_progress)
    assert done.returncode == 0
    bars = re.findall(r"(?:\[0\]<stderr>:|\r) *(\d+)%\|", done.stderr)
    assert done.stderr.count("[0]<stderr>:") == 1, done.stderr
    assert bars[0] == "0"
    assert bars[-1] == "100"
    assert done.stderr.endswith("\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_redrawn_in_its_place(terminal):
    """A terminal gets the label with each redraw, as the text would overwrite it; a pipe gets it once."""
    reader, writer = os.openpty() if terminal else os.pipe()
    with open(reader, "rb", buffering=0) as shown, open(writer, "w") as screen:
        if terminal:
            tty.setraw(writer)
        sink = Sink(screen)
        bar, other = RankStream("[0]:", sink), RankStream("[1]:", sink)
        for part in (b"\r 0%", b"\r 50%", b"\r"):
            bar.feed(part)
        bar.show_partial()
        other.feed(b"hello\n")
        bar.feed(b" 90%\r 100%\n")
        bar.end()
        label = "[0]:" if terminal else ""
        expected = f"[0]: 0%\r{label} 50%\n[1]:hello\n[0]: 90%\r{label} 100%\n"
        said = b""
        while len(said) < len(expected):
            said += shown.read(1000)
        assert said.decode() == expected


def test_nobody_reads_the_output(launcher):
    read_end, write_end = os.pipe()
    process = launcher.start("-np", 2, "sh", "-c", "while true; do echo y; done", stdout=write_end)
    os.close(write_end)
    assert os.read(read_end, 10).startswith(b"[")
    os.close(read_end)
    assert process.wait(timeout=100) == 128 + 13
    assert launcher.wait_for_none() == []


def test_slow_reader_does_not_deadlock(launcher):
    code = "import sys\nfor i in range(20000): print(i); print(i, file=sys.stderr)"
    process = launcher.start_python(2, code)
    # All of standard error is read only after standard output: the launcher must not lose or stop anything.
    errors = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
    reader.start()
    out = process.stdout.read()
    reader.join(timeout=100)
    assert process.wait(timeout=100) == 0
    assert out.count(b"\n") == errors[0].count(b"\n") == 40000


def test_output_to_one_terminal_keeps_lines_apart(launcher):
    """stdout and stderr in the same pipe: an unfinished line of one must not run into the other."""
    process = launcher.start(
        "-np", 1, *program_words(output_programs.a_line_beside_a_part_of_an_error), stderr=subprocess.STDOUT
    )
    shown = read_until(process, b"", b"50%")
    (launcher.folder / "part").touch()
    shown = read_until(process, shown, b"message\n")
    (launcher.folder / "line").touch()
    rest, _ = process.communicate(timeout=100)
    out = shown + rest
    assert out.decode() == "[0]<stderr>:50%\n[0]<stdout>:message\n"
