"""Log lines: level, time, rank, Python's logging; and texts of other ranks, which must be safe to show."""

import logging
import random
import re
import subprocess
import sys

import pytest

import hvd_core as hvd
import log_programs
from harness import run_on_ranks
from hvd_core._base import logs
from hvd_core._core import printable
from launchers import program_words

STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] "


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"rank 1: all is well \t\xc3\xa9 \xf0\x9f\x90\xa7", "rank 1: all is well \t\u00e9 \U0001f427"),
        (b"\x1b[2Jgone\r\x00\x7f", r"\x1b[2Jgone\x0d\x00\x7f"),
        ("\u009b31m \u202eabc\u2028 \ufeff".encode(), r"\u{9b}31m \u{202e}abc\u{2028} \u{feff}"),
        (b"\xff\xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xe2", r"\xff\xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xe2"),
        (b"text\n[0] horovod FATAL: forged\n  kept\n\nend\n", "text\n  [0] horovod FATAL: forged\n  kept\n  \n  end\n"),
    ],
)  # fmt: skip
def test_printable(raw, shown):
    assert printable(raw) == shown
    assert printable(shown.encode()) == shown


def test_printable_shows_no_bytes_that_control_a_terminal():
    rng = random.Random(17)
    for _ in range(2000):
        shown = printable(rng.randbytes(rng.randrange(64)))
        assert all(c.isprintable() or c in "\t\n" for c in shown if ord(c) < 0xA0), repr(shown)
        assert all(line.startswith(" ") for line in shown.split("\n")[1:] if line)


def test_printable_cuts_what_is_long():
    shown = printable(b"x" * (1 << 20))
    assert len(shown) < (64 << 10) + 40 and shown.endswith(f"... ({(1 << 20) - (64 << 10)} bytes more)")


@pytest.mark.ranks(2)
def test_a_name_with_control_characters_reaches_no_terminal():
    import numpy as np

    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(np.zeros(2 + hvd.rank(), np.float32), name="clear\x1b[2J\nit")
    assert r"clear\x1b[2J" in str(caught.value) and "\x1b" not in str(caught.value)


def log_lines(level):
    """What a program without handlers prints, from the text after "begin"."""
    # One write: print() makes two where Python does not buffer, and the engine's line may come between them.
    sys.stderr.write("begin\n")
    logs.logger.warning("horovod: from Python on %d", hvd.rank())
    return logs.logger.level == level


def test_lines_have_time_and_rank():
    outcome = run_on_ranks(2, log_lines, logging.NOTSET)
    assert outcome.results == [True, True]
    for rank, output in enumerate(outcome.outputs):
        assert re.search(rf"(?m)^{STAMP}\[{rank}\] horovod WARNING: from Python on {rank}$", output), output


@pytest.mark.parametrize("variable", [{"HOROVOD_LOG_HIDE_TIME": "1"}, {"HOROVOD_LOG_TIMESTAMP": "0"}])
def test_lines_without_time(variable):
    env = variable | {"HOROVOD_LOG_LEVEL": "debug"}
    outcome = run_on_ranks(2, log_lines, logging.DEBUG, env=env)
    assert outcome.results == [True, True]
    for rank, output in enumerate(outcome.outputs):
        # The second line is the engine's own, from its end.
        assert re.search(rf"(?m)^\[{rank}\] horovod WARNING: from Python on {rank}$", output), output
        assert re.search(rf"(?m)^\[{rank}\] horovod DEBUG: shutdown begun by rank \d", output), output


def python(program, **env):
    """The lines that a program writes to standard error: a function, or a text behind the imports that it needs."""
    if isinstance(program, str):
        program = "import logging, hvd_core as hvd\n" + program
    done = subprocess.run(program_words(program), env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


CONFIGURED = "logging.basicConfig(format='%(name)s/%(levelname)s/%(message)s')\n"


def test_a_program_that_configures_logging_gets_the_messages():
    assert python(CONFIGURED + "logging.getLogger('horovod').warning('once')") == ["horovod/WARNING/once"]


def test_engine_lines_go_to_python_on_request():
    env = {"HOROVOD_LOG_LEVEL": "debug", "HOROVOD_LOG_TO_PYTHON": "1"}
    lines = python(CONFIGURED + "hvd.init(); hvd.shutdown()", **env)
    assert any(line.startswith("horovod/DEBUG/shutdown begun by rank 0") for line in lines), lines
    assert all(line.startswith("horovod/") for line in lines), lines
    # Without a handler they come out as the engine would have written them.
    lines = python("hvd.init(); hvd.shutdown()", HOROVOD_LOG_HIDE_TIME="1", **env)
    assert any(line.startswith("[0] horovod DEBUG: shutdown begun by rank 0") for line in lines), lines


def test_a_program_that_ends_without_shutdown_loses_no_line():
    lines = python("hvd.init()", HOROVOD_LOG_LEVEL="debug", HOROVOD_LOG_TO_PYTHON="1")
    assert any("shutdown begun by rank 0" in line for line in lines), lines


def test_a_forked_child_of_a_program_that_forwards_ends():
    lines = python(log_programs.child_logs, HOROVOD_LOG_TO_PYTHON="1")
    assert any(line.endswith("horovod ERROR: child") for line in lines), lines


def test_a_forked_child_may_forward_lines_too():
    lines = python(log_programs.child_forwards, HOROVOD_LOG_LEVEL="debug", HOROVOD_LOG_TO_PYTHON="1")
    assert any(line.startswith("horovod/DEBUG/shutdown begun by rank 0") for line in lines), lines
    assert all(line.startswith("horovod/") for line in lines), lines
