"""Starts the real horovodrun, here or inside a host of namespaces.py, and finds what it may have left behind.

Each job carries a mark in its environment, which all its descendants inherit: a process that still
carries it afterwards was left behind.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import horovod

PACKAGES = str(Path(horovod.__file__).resolve().parents[1])
SHARED_MEMORY = Path("/dev/shm")
# What MPI libraries leave there when their ranks are killed, in tests beside the one that looks.
_OF_MPI = ("mpich_", "sm_segment.", "vader_segment.")


def send_each(number, pids):
    """Sends a signal to the processes. Some may have ended meanwhile: the end of one ends others, soon or late."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def first_by(kind):
    """For a test with the fixture mpirun, where the other MPI would prove in `make test` what a test beside it does."""
    other = {"openmpi": "mpich", "mpich": "openmpi"}[kind]
    kinds = [kind, pytest.param(other, marks=pytest.mark.slow)]
    return pytest.mark.parametrize("mpirun", kinds, indirect=True)


def each_by_one(name, openmpi, mpich):
    """For a test with the fixture mpirun and two cases, which differ by more than the MPI: each MPI has one of them in
    `make test`, as the values of `name` say."""
    slow = [pytest.param(*case, marks=pytest.mark.slow) for case in (("openmpi", mpich), ("mpich", openmpi))]
    cases = [("openmpi", openmpi), ("mpich", mpich), *slow]
    return pytest.mark.parametrize(f"mpirun, {name}", cases, indirect=["mpirun"])


def mpi_library(mpirun):
    """The path of the library of an MPI, from the fixture mpirun. Only the mpirun of Open MPI has options."""
    name = "libmpi.so.40" if len(mpirun) > 1 else "libmpi.so.12"
    return str(Path(mpirun[0]).parents[1] / "lib" / name)


def left_in_shared_memory(before, seconds=30):
    """Names in /dev/shm that were not there `before` (a set of names) and that no living process has mapped.

    Programs beside the test use the folder too. The function waits until they have mapped the files that they made.
    """
    deadline = time.monotonic() + seconds
    while new := {name for name in os.listdir(SHARED_MEMORY) if not name.startswith(_OF_MPI)} - set(before):
        if not (left := new - _mapped()):
            break
        if time.monotonic() > deadline:
            return sorted(left)
        time.sleep(0.2)
    return []


def _mapped():
    """Names of the files in /dev/shm that living processes have mapped."""
    names = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines = (entry / "maps").read_text(errors="surrogateescape").splitlines()
            except OSError:
                continue  # it has ended meanwhile
            names |= {Path(line.split()[-1]).name for line in lines if f" {SHARED_MEMORY}/" in line}
    return names


def program_words(program, *arguments, python=(sys.executable,)):
    """The command of a Python program: a text, or a function of a module that calls the function which its first
    argument names, with the arguments behind it. `python`: the words in front."""
    if isinstance(program, str):
        return [*python, "-c", program, *map(str, arguments)]
    file = str(Path(program.__code__.co_filename).resolve())
    return [*python, file, program.__name__, *map(str, arguments)]


def parent_with(words, pid):
    """The next parent of a process whose command line holds these words."""
    while pid > 1:
        with open(f"/proc/{pid}/stat") as stat:
            pid = int(stat.read().rpartition(")")[2].split()[1])
        with open(f"/proc/{pid}/cmdline") as line:
            if words in line.read():
                return pid
    raise AssertionError(f"no parent with {words}")


class Launcher:
    """Runs `horovodrun` in a folder of its own; anything given as `env` is added to the environment.

    `enter` are words in front of its command, `options` words behind it.
    """

    def __init__(self, folder, enter=(), options=()):
        self.folder = folder
        self.enter, self.options = enter, options
        self.mark = f"HVD_TEST_MARK={uuid.uuid4()}"
        self.started = []

    def environment(self, env=None):
        name, _, value = self.mark.partition("=")
        paths = [PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, name: value, "PYTHONPATH": os.pathsep.join(paths), **(env or {})}

    def start(self, *words, env=None, **options):
        """A running horovodrun; its standard output and error are pipes unless `options` say otherwise."""
        command = [sys.executable, "-m", "horovod.runner.launch", *map(str, (*self.options, *words))]
        return self.start_command([*self.enter, *command], env, **options)

    def start_command(self, command, env=None, **options):
        """Any command, as start() does it."""
        options = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            **options,
        }
        process = subprocess.Popen(command, env=self.environment(env), cwd=self.folder, **options)
        self.started.append(process)
        return process

    def run(self, *words, env=None, timeout=150, **options):
        """A finished horovodrun, with text in stdout and stderr."""
        process = self.start(*words, env=env, **options)
        out, err = process.communicate(timeout=timeout)
        # Not Popen's own decoding: it would turn CR into LF.
        out, err = (None if data is None else data.decode() for data in (out, err))
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def python(self, count, program, *words, **options):
        """`count` ranks that execute `program`, a line of Python or a function as program_words() takes it; `words` are
        options of horovodrun."""
        return self.run("-np", count, *words, *program_words(program), **options)

    def start_python(self, count, program, *words, **options):
        return self.start("-np", count, *words, *program_words(program), **options)

    def processes(self):
        """Process ids that carry the mark; zombies have no environment any more."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    pass
        return found

    def wait_for_none(self, seconds=60):
        """Waits until no process carries the mark; returns those that still do. On a busy machine that may take long."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def wait_for(self, count, name, seconds=90):
        """Waits until `count` files named `name`* exist in the folder; returns their texts."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            files = sorted(file for file in self.folder.glob(name + "*") if file.suffix != ".tmp")
            texts = [file.read_text() for file in files]
            if len(files) >= count and all(text.endswith("\n") for text in texts):
                return [text.strip() for text in texts]
            time.sleep(0.02)
        raise AssertionError(f"only {len(files)} of {count} files {name}* appeared")

    def wait_for_process(self, words, seconds=90):
        """The process id of the one whose command line holds `words`, apart from horovodrun's own."""
        deadline = time.monotonic() + seconds
        ours = {process.pid for process in self.started}
        while time.monotonic() < deadline:
            for pid in self.processes():
                try:
                    if pid not in ours and words.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
                except OSError:
                    pass
            time.sleep(0.02)
        raise AssertionError(f"no process with {words!r} appeared")

    def wait_until_asleep(self, pid, seconds=90, quiet=0.5):
        """Waits until the process has ended, or slept for `quiet` seconds, and so handled each signal sent before.

        One that only waits for a processor uses no time either, but does not sleep.
        """
        deadline = time.monotonic() + seconds
        used, since = None, time.monotonic()
        while (now := time.monotonic()) < deadline:
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if state in "ZX":
                return
            if state != "S" or fields[10:12] != used:
                used, since = fields[10:12], now
            elif now - since >= quiet:
                return
            time.sleep(0.02)
        raise AssertionError(f"process {pid} goes on working")

    def clean_up(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        send_each(signal.SIGKILL, self.wait_for_none(5))
