"""Fork servers: a child is like a new interpreter, and its client ends as it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import fork_messages, fork_servers, plain

PROGRAM = str(Path(__file__).with_name("fork_program.py"))


def interpreter():
    return fork_servers.interpreter(("decimal",), dict(os.environ))


def start(*words, **options):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*interpreter(), PROGRAM, *map(str, words)], text=True, **pipes, **options)


def said(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_child_has_the_modules_and_what_its_client_has(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, b"from a file")
    env = {**os.environ, "HVD_TEST_SPOKEN": "aloud"}
    client = start("tell", reader, cwd=tmp_path, env=env, pass_fds=[reader])
    os.close(reader)
    os.close(writer)
    out, err = client.communicate("from the input", timeout=60)
    assert (out, err) == (f"{['tell', str(reader)]} True {tmp_path} aloud from the input\n", "from a file\n")
    assert client.returncode == 0


@pytest.mark.parametrize(
    ("words", "code"), [(("end", 0), 0), (("end", 3), 3), (("die",), -9), (("fail",), 1)]
)
def test_a_client_ends_as_the_child_does(words, code):
    client = start(*words)
    _, err = client.communicate(timeout=60)
    assert client.returncode == code
    if words == ("fail",):
        assert err == said(sys.executable, PROGRAM, "fail").stderr, "the traceback has no frame of the server"


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "import sys, fork_program; sys.argv[1:] = ['a']; fork_program.describe()", "describe", "b"],
        ["-m", "fork_program", "describe"],
        [PROGRAM, "describe"],
    ],
    ids=["text", "module", "file"],
)
@pytest.mark.parametrize("variables", [{}, {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}], ids=str)
def test_a_program_finds_as_a_child_all_that_an_interpreter_gives(words, variables):
    one = {min(os.sched_getaffinity(0))}
    env = {**os.environ, "PYTHONPATH": str(Path(PROGRAM).parent), **variables}
    own, forked = (
        said(*python, *words, env=env, preexec_fn=lambda: os.sched_setaffinity(0, one))
        for python in ([sys.executable], interpreter())
    )
    assert own.returncode == 0 and own.stdout.endswith("False\n"), own.stderr
    assert forked.stdout == own.stdout.removesuffix("False\n") + "True\n", forked.stderr


@pytest.mark.parametrize(
    ("options", "variables"),
    [(["-B"], {}), ([], {"PYTHONHASHSEED": "7"}), ([], {"LD_PRELOAD": ""})],
    ids=str,
)
def test_a_client_becomes_an_interpreter_where_a_child_would_differ(options, variables):
    done = said(*interpreter(), *options, PROGRAM, "describe", env={**os.environ, **variables})
    assert done.stdout.endswith("False\n"), done.stderr


IS_CHILD = f"import os; print({fork_messages.ADDRESS!r} in os.environ)"


def test_what_horovodrun_gives_its_ranks_makes_no_interpreter_of_them():
    assert said(*plain.horovodrun(1), "-c", IS_CHILD).stdout == "[0]<stdout>:True\n"


@pytest.mark.mpi
def test_what_mpirun_gives_its_ranks_makes_no_interpreter_of_them(mpirun):
    assert said(*mpirun, "-np", "1", *interpreter(), "-c", IS_CHILD).stdout == "True\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 7), (signal.SIGKILL, -9)])
def test_a_signal_to_the_client_reaches_the_child(tmp_path, number, code):
    path = tmp_path / "pid"
    client = start("wait", path)
    wait_until(path.exists)
    child = Path("/proc") / path.read_text()
    assert child.exists()
    client.send_signal(number)
    client.communicate(timeout=60)
    assert client.returncode == code
    wait_until(lambda: not child.exists())


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(RuntimeError, match="no module of this kind"):
        fork_servers.interpreter(
            ("fork_server_that_fails",), {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        )
