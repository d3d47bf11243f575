"""Child processes that may exit, crash, hang or print without harm to their parent: for plugins' code and vendors' tools.

Three ways to use one, for one thread each:

- ``run()``: start a program, wait for its end or a timeout, and take its output;
- ``run_reporting()`` and ``run_forked()``: follow a program, or a function in a fork, which reports the phase that it is
  in (each phase has its own timeout) and sends values as JSON, so that those of finished phases are not lost;
- ``Child``: a program that answers requests, one JSON message a line.

Each child leads its own process group, which is killed with it. Output is read while the child runs, and only the last
bytes are kept. A grandchild that keeps a pipe open delays nobody: the end of the child counts, not the end of the pipe.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hvd_core._base.messages import LineBuffer

__all__ = [
    "Child",
    "Completed",
    "Report",
    "Reporter",
    "describe_exit",
    "kill_group",
    "receive_any",
    "run",
    "run_forked",
    "run_reporting",
    "signal_name",
]

Message = dict[str, Any]
"""A JSON object."""
Stage = tuple[str, str] | None
"""(subject, phase) of the code that runs, such as ("shm", "load"); None between phases."""

_OUTPUT_BYTES = 64 << 10
_REPORT_BYTES = 16 << 20
_CHUNK = 1 << 16
_CHUNKS = (
    64  # of a pipe at one time: a child that prints endlessly must not keep its parent from the timeouts
)
_LOOK_SECONDS = 0.05  # how often a child is looked at whose pipe a grandchild keeps open
_PR_SET_PDEATHSIG = 1


# ---- how a process ended -----------------------------------------------------------------------------------------------


def signal_name(number: int) -> str:
    """The name of a signal, ``SIGSEGV``; ``signal 40`` if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(returncode: int) -> str:
    """How a process ended: ``exited with code 3``, or ``was killed by SIGSEGV`` for -11."""
    return (
        f"exited with code {returncode}" if returncode >= 0 else f"was killed by {signal_name(-returncode)}"
    )


def kill_group(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal to the process group that ``pid`` leads. The id is not reused while the group has members, or the
    leader is not reaped. Returns whether the group has a member that this process may signal."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


# ---- a program, to its end ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Completed:
    """How a program ended. ``returncode``: its exit code, -N if signal N killed it, None if it was killed at the timeout.
    ``stdout``, ``stderr``: the last part of its output."""

    returncode: int | None
    stdout: str
    stderr: str

    @property
    def timed_out(self) -> bool:
        """Whether the timeout ended it."""
        return self.returncode is None

    @property
    def signal(self) -> str:
        """The name of the signal that killed it; "" if none did."""
        return signal_name(-self.returncode) if self.returncode is not None and self.returncode < 0 else ""


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    stdin: str = "",
    merge_output: bool = False,
    encoding_errors: str = "replace",
) -> Completed:
    """Run a program to its end, or kill it and its process group after ``timeout_s``. Processes that it leaves behind are
    killed too.

    ``env``: the whole environment; None for that of this process. ``merge_output``: write standard error to ``stdout``.
    ``encoding_errors``: for bytes of the output that are not UTF-8. Raises OSError if the program cannot be started.

    >>> run(["echo", "a"], timeout_s=5).stdout
    'a\\n'
    """
    with tempfile.TemporaryFile() as source:  # a pipe could block: the program need not read it
        source.write(stdin.encode())
        source.seek(0)
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge_output else subprocess.PIPE,
            start_new_session=True,
        )
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    try:
        with _Watch(process.pid, {pipe.fileno(): _REPORT_BYTES for pipe in pipes}) as watch:
            until = time.monotonic() + timeout_s
            while watch.returncode is None and (left := until - time.monotonic()) > 0:
                watch.wait(left)
            kill_group(process.pid)
            watch.drain()
            texts = [watch.text(pipe.fileno(), encoding_errors) for pipe in pipes]
    finally:
        kill_group(process.pid)
        process.wait()
        for pipe in pipes:
            pipe.close()
    return Completed(watch.returncode, texts[0], "" if merge_output else texts[1])


class _Watch:
    """Reads the output of one child until its end. ``pipes``: descriptor -> how many of its last bytes are kept."""

    def __init__(self, pid: int, pipes: Mapping[int, int]) -> None:
        self._pid, self._kept = pid, dict(pipes)
        self._selector = selectors.DefaultSelector()
        self._open = set(pipes)
        self.data = {pipe: bytearray() for pipe in pipes}
        self.returncode: int | None = None
        """None while the child runs. It is not reaped."""
        for pipe in pipes:
            os.set_blocking(pipe, False)
            self._selector.register(pipe, selectors.EVENT_READ)

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()

    def wait(self, timeout_s: float) -> None:
        """Read what is available, after a short time at most, and look whether the child has ended."""
        # Its pipes are closed just before it has ended.
        pause = _LOOK_SECONDS if self._open else 0.001
        for key, _ in self._selector.select(max(0.0, min(timeout_s, pause))):
            self._read(key.fd)
        self.returncode = _returncode_of(self._pid)

    def drain(self) -> None:
        """Read what is available."""
        for pipe in list(self._open):
            self._read(pipe)

    def text(self, pipe: int, errors: str = "replace") -> str:
        """What the child has written to a pipe."""
        return self.data[pipe].decode(errors=errors)

    def _read(self, pipe: int) -> None:
        data = self.data[pipe]
        with suppress(BlockingIOError):
            for _ in range(_CHUNKS):
                chunk = os.read(pipe, _CHUNK)
                if not chunk:
                    self._open.remove(pipe)
                    self._selector.unregister(pipe)
                    break
                data += chunk
                del data[: -self._kept[pipe]]


def _returncode_of(pid: int) -> int | None:
    """How a child has ended, without reaping it; None if it runs."""
    try:
        state = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # SIGCHLD is ignored: it was reaped, and its status is unknown
        return 0
    if state is None:
        return None
    return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status


# ---- a program or a function that reports its phases -------------------------------------------------------------------


class Reporter:
    """The child's side of ``run_forked()`` and ``run_reporting()``, which writes to a pipe to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def attach(cls, arguments: Sequence[str]) -> Reporter:
        """The reporter of a program that ``run_reporting()`` has started. ``arguments``: ``sys.argv``."""
        descriptor, parent = map(int, arguments[-2:])
        _confine(parent)
        return cls(descriptor)

    def enter(self, stage: Stage) -> None:
        """Code of another stage runs from now on."""
        self._write({"stage": stage})

    def send(self, value: object) -> None:
        """Give the parent a value, as JSON; other objects become strings."""
        self._write({"value": value})

    def done(self) -> None:
        """The work is done: nothing that happens afterwards is a fault."""
        self._write({"done": True})

    def failed(self, fault: str) -> None:
        """The work has failed in the current stage."""
        self._write({"fault": fault})

    def _write(self, report: Message) -> None:
        data = json.dumps(report, default=str).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


@dataclass
class Report:
    """What the parent learned. ``values``: those that the child sent, in order. ``fault``: how the child ended before its
    work was done; "" if it was done. ``subject``, ``phase``: the stage in which that happened; "" between stages.
    ``output``: the last lines of its standard output and standard error."""

    values: list[Any] = field(default_factory=list)
    fault: str = ""
    subject: str = ""
    phase: str = ""
    output: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """``its process was killed by SIGSEGV in the phase load``; "" if there was no fault."""
        return f"{self.fault} in the phase {self.phase}" if self.fault and self.phase else self.fault

    def relay_output(self) -> None:
        """Write the output to standard error."""
        for line in self.output:
            print(line, file=sys.stderr)


def run_reporting(
    argv: Sequence[str],
    timeouts_s: Mapping[str, float],
    *,
    between_s: float = 120.0,
    total_s: float = float("inf"),
    env: Mapping[str, str] | None = None,
) -> Report:
    """Run a program that reports its phases, until its work is done, fails or exceeds a timeout. It and all that it has
    started are killed then.

    Args:
        argv: the program and its arguments; two more are appended, for ``Reporter.attach()``.
        timeouts_s: phase -> seconds. ``between_s``: between phases, which includes the start of an interpreter.
            ``total_s``: of the whole.
        env: the whole environment; None for that of this process.

    Raises:
        OSError: the program cannot be started.
    """

    def start(report_end: int, output_end: int) -> int:
        words = [*argv, str(report_end), str(os.getpid())]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output_end, 1),
            (os.POSIX_SPAWN_DUP2, output_end, 2),
            (os.POSIX_SPAWN_DUP2, report_end, report_end),  # makes it inheritable
        ]
        variables = os.environ if env is None else env
        return os.posix_spawnp(words[0], words, variables, file_actions=actions, setsid=True)

    return _supervise(start, timeouts_s, between_s, total_s)


def run_forked(
    work: Callable[[Reporter], None],
    timeouts_s: Mapping[str, float],
    *,
    between_s: float = 120.0,
    total_s: float = float("inf"),
    describe_error: Callable[[BaseException], str] = repr,
) -> Report:
    """Run ``work(reporter)`` in a fork of this process, until it is done, fails or exceeds a timeout.

    The fork and all that it has started are killed then. Must be called on the only thread of this process. Exit handlers
    do not run in the fork, because a plugin's may crash or hang too.

    The timeouts are those of run_reporting(). ``describe_error``: an exception of the work for ``Report.fault``.

    >>> run_forked(lambda reporter: reporter.send(1), {}).values
    [1]
    """

    def start(report_end: int, output_end: int) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _in_fork(work, report_end, output_end, parent, describe_error)
        return child

    return _supervise(start, timeouts_s, between_s, total_s)


def _supervise(
    start: Callable[[int, int], int], timeouts_s: Mapping[str, float], between_s: float, total_s: float
) -> Report:
    """Follow the child that ``start`` makes, from the write ends of the pipes for reports and output, to its end.

    ``start`` returns its process id."""
    reports, report_end = os.pipe()
    output, output_end = os.pipe()
    try:
        try:
            pid = start(report_end, output_end)
        finally:
            os.close(report_end)
            os.close(output_end)
        with _Watch(pid, {reports: _REPORT_BYTES, output: _OUTPUT_BYTES}) as watch:
            try:
                report = _follow(watch, reports, timeouts_s, between_s, total_s)
            finally:
                with suppress(ProcessLookupError):  # SIGCHLD is ignored
                    os.kill(pid, signal.SIGKILL)  # a fork's group may not have been made yet
                kill_group(pid)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            watch.drain()
            report.output = watch.text(output).splitlines()
            return report
    finally:
        os.close(reports)
        os.close(output)


def _follow(
    watch: _Watch, reports: int, timeouts_s: Mapping[str, float], between_s: float, total_s: float
) -> Report:
    report, began = Report(), time.monotonic()
    last, limit = began + total_s, between_s
    while True:
        until = min(last, began + limit)
        watch.wait(until - time.monotonic())
        if watch.returncode is not None:
            watch.drain()
        for message in _complete_lines(watch.data[reports]):
            if "value" in message:
                report.values.append(message["value"])
            elif "stage" in message:
                report.subject, report.phase = message["stage"] or ("", "")
                began, limit = time.monotonic(), timeouts_s.get(report.phase, between_s)
            elif "fault" in message:
                report.fault = str(message["fault"])
                return report
            elif "done" in message:
                return report
        if watch.returncode is not None:
            report.fault = f"its process {describe_exit(watch.returncode)}"
            return report
        if time.monotonic() >= min(last, began + limit):
            report.fault = f"its process timed out after {round(until - began, 1):g} s"
            return report


def _complete_lines(data: bytearray) -> Iterator[Message]:
    """Takes the messages from ``data``. The plugin may have written to the pipe too: other lines are left out."""
    *lines, rest = bytes(data).split(b"\n")
    data[:] = rest
    for line in lines:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                yield message


def _confine(parent: int) -> None:
    """Ends this process with its parent, and makes it write no core file."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the line above took effect
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _in_fork(
    work: Callable[[Reporter], None],
    report_end: int,
    output_end: int,
    parent: int,
    describe_error: Callable[[BaseException], str],
) -> NoReturn:
    reporter = Reporter(report_end)
    try:
        os.setsid()
        _confine(parent)
        faulthandler.disable()  # where it is on, it would write the parent's own stack
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output_end, 1)
        os.dup2(output_end, 2)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (open until the end of this process)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        work(reporter)
        reporter.done()
    except BaseException as error:
        traceback.print_exc()
        with suppress(OSError):
            reporter.failed(f"it raised {describe_error(error)}")
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)


# ---- a program that answers requests -----------------------------------------------------------------------------------


class Child:
    """A program that reads requests from its standard input, and writes answers to its standard output: one JSON object a
    line. Its standard error is kept in a file.

    Args:
        argv: the program and its arguments.
        env: the whole environment; None for that of this process.
        own_group: whether it leads a process group, which ``kill()`` kills. Without one it belongs to the group of this
            process, and is killed with it.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, own_group: bool = True
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        self._own_group, self._lines = own_group, LineBuffer()
        try:
            self._process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=own_group,
            )
        except BaseException:
            self._errors.close()
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor of its standard output, for a selector."""
        return self._answers.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request. If the child has ended, ``receive_any()`` finds out."""
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(message).encode() + b"\n")

    def signal(self, number: int) -> None:
        """Send a signal to the child, if it runs."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Its return code; None if it still runs after ``timeout_s``."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def errors(self) -> str:
        """What it has written to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def close_requests(self) -> None:
        """Close its standard input, which asks it to end."""
        self._requests.close()

    def kill(self) -> None:
        """End it, and its process group if it leads one. Nothing happens the second time."""
        if self._errors.closed:
            return
        if self._own_group:
            kill_group(self._process.pid)
        self._process.kill()
        self._process.wait()
        for stream in (self._requests, self._answers, self._errors):
            stream.close()

    def take(self, chunk: bytes = b"") -> Message | None:
        """The next answer in what was read before and ``chunk``; None if it is not complete."""
        self._lines.add(chunk)
        line = self._lines.next_line()
        if line is None:
            return None
        answer: Message = json.loads(line)
        return answer


def receive_any(children: Collection[Child], timeout_s: float) -> dict[Child, Message | None]:
    """Wait until at least one child has answered or ended, at most ``timeout_s`` seconds. Returns the answers by child,
    None for a child that has ended; nothing at the timeout."""
    found: dict[Child, Message | None] = {
        child: answer for child in children if (answer := child.take()) is not None
    }
    until = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child, selectors.EVENT_READ, child)
        while children and not found and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                child, chunk = key.data, os.read(key.fd, 1 << 20)
                answer = child.take(chunk)
                if answer is not None or not chunk:
                    found[child] = answer
    return found
