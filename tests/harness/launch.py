"""A launch of its own for a function whose ranks die, are killed, or must be seen to end: nothing is kept alive.

The ranks run rank_once.py: they import the function, initialise the engine, call the function and end.
"""

import atexit
import os
import pickle
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import frameworks
from .run import DEFAULT, module_to_initialize, place_of

RANK_ONCE = Path(__file__).with_name("rank_once.py")


def write_call(folder: Path, function, arguments, init: str | None, init_options: dict | None) -> Path:
    """The file from which rank_once.py reads what it is to call."""
    call = folder / "call.pickle"
    call.write_bytes(pickle.dumps((place_of(function), arguments, str(folder), init, init_options or {})))
    return call


def launch(
    ranks: int, function, *arguments, framework: str = "", folder: Path | None = None,
    env: dict[str, str] | None = None, init: str | None = DEFAULT, init_options: dict | None = None,
    command: list[str] | None = None, **popen,
) -> subprocess.Popen:  # fmt: skip
    """A running launcher whose ranks call `function` with `arguments`; its output is one stream of text.

    folder: where the marks of harness.rank.tell() are, a test's tmp_path, say. The rest is as for run_on_ranks();
    `popen` goes to subprocess.Popen.
    """
    if folder is None:
        folder = tempfile.mkdtemp(prefix="hvd-ranks-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    for left in folder.glob("told.*"):  # by an earlier job of the same test
        left.unlink()
    call = write_call(folder, function, arguments, module_to_initialize(framework, init), init_options)
    return subprocess.Popen(
        [*(command or frameworks.horovodrun(ranks, framework=framework)), str(RANK_ONCE), str(call)],
        env={**os.environ, **frameworks.environment_of(framework), **(env or {})},
        **{
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "stdin": subprocess.DEVNULL,
            "text": True,
            **popen,
        },
    )


def pids_of(job: subprocess.Popen, ranks: int) -> tuple[dict[int, int], str]:
    """The process ids that all ranks print as 'pid RANK PID', by rank, once they have, and the job's output so far."""
    found, text = {}, ""
    while len(found) < ranks:
        line = job.stdout.readline()
        assert line, f"the job ended early:\n{text}"
        text += line
        if match := re.search(r"pid (\d+) (\d+)", line):
            found[int(match[1])] = int(match[2])
    return found, text


def run_to_the_end(ranks: int, function, *arguments, timeout: float = 100, code: int = 0, **options) -> str:
    """What such a job printed until its end; AssertionError if that does not come in time or with another exit code."""
    return finish(launch(ranks, function, *arguments, **options), timeout, code)


def finish(job: subprocess.Popen, timeout: float, code: int = 0) -> str:
    """What the job printed until its end; asserts that this comes in time, and on the exit code."""
    try:
        output, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        job.terminate()
        output, _ = job.communicate(timeout=60)
        raise AssertionError(f"not finished after {timeout} s; it printed:\n{output}") from None
    assert job.returncode == code, f"exit code {job.returncode}, expected {code}; it printed:\n{output}"
    return output
