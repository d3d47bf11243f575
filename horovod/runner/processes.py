"""Starts the ranks of a job on this machine and follows them to their end.

The processes belong to the keeper (keeper.py); this side passes on their output and turns their exit codes
into one. Job.run() blocks its thread; Job.stop() may be called from a signal handler of the same thread.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from horovod.runner.output import Output, OutputClosedError, RankStream

_KEEPER = Path(__file__).with_name("keeper.py")
_CHUNK = 1 << 16
# Once everything has ended the pipes hold only what is left in them.
_DRAIN_S = 2.0


@dataclass
class RankSpec:
    """One process to be: its command, its variables on top of the job's, descriptors it may keep."""

    rank: int
    command: Sequence[str]
    env: Mapping[str, str]
    keep: Sequence[int] = ()


@dataclass
class Outcome:
    """How a job ended. `first_failed` is (rank, exit code); a signal counts as 128 + its number."""

    codes: dict[int, int] = field(default_factory=dict)
    first_failed: tuple[int, int] | None = None
    problem: str | None = None

    @property
    def exit_code(self) -> int:
        if self.first_failed is not None:
            return self.first_failed[1]
        return 0 if self.problem is None else 1

    def error_text(self) -> str | None:
        """Horovod's text about the first failure, or what else went wrong; None after success."""
        if self.first_failed is None:
            return self.problem
        rank, code = self.first_failed
        return (
            "Horovod detected that one or more processes exited with non-zero status, thus causing the job "
            "to be terminated. The first process to do so was:\n"
            f"Process name: {rank}\nExit code: {code}\n"
        )


class Job:
    """One set of ranks. `env` is the common environment, `note` gets the lines of --verbose."""

    def __init__(
        self, ranks: Sequence[RankSpec], env: Mapping[str, str], output: Output, verbose: bool = False
    ):
        self._ranks = ranks
        self._env = env
        self._output = output
        self._verbose = verbose
        self._outcome = Outcome()
        self._streams: dict[int, list[RankStream]] = {}
        self._readers: dict[RankStream, int] = {}
        self._pids: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._control: socket.socket | None = None
        self._keeper: subprocess.Popen | None = None
        self._events = b""
        self._describing = True
        self._stop_wanted = False

    def run(self) -> Outcome:
        """Starts the ranks and returns when no process of the job is left.

        Raises OSError when processes or output files cannot be made. Any other exception (KeyboardInterrupt)
        ends the job first and is raised then. OutputClosedError: nobody reads our output, the job was ended.
        """
        try:
            self._start()
            self._follow()
        except OutputClosedError:
            self._output.mute()
            self._end()
            raise
        except BaseException:
            self._end()
            raise
        finally:
            self._close()
        return self._outcome

    def stop(self) -> None:
        """Asks for the end of all ranks: SIGTERM, and SIGKILL after a while. The second call: SIGKILL now."""
        if self._describing:
            # A signal handler must not write into the middle of the description.
            self._stop_wanted = True
        elif self._control is not None:
            try:
                self._control.send(b'"stop"\n', socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                pass  # the keeper has ended, so there is nothing to stop

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._control = ours
        described, writers = [], []
        try:
            for spec in self._ranks:
                entry = {"rank": spec.rank, "command": _encode(spec.command), "env": _encode_env(spec.env)}
                self._streams[spec.rank] = []
                for name in ("stdout", "stderr"):
                    stream = self._output.stream(spec.rank, name)
                    reader, writer = os.pipe()
                    os.set_blocking(reader, False)
                    self._streams[spec.rank].append(stream)
                    self._readers[stream] = reader
                    self._selector.register(reader, selectors.EVENT_READ, stream)
                    entry[name] = writer
                    writers.append(writer)
                entry["keep"] = list(spec.keep)
                described.append(entry)
            python = sys.executable or shutil.which("python3") or "python3"
            self._keeper = subprocess.Popen(
                [python, "-I", "-S", str(_KEEPER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *writers] + [kept for spec in self._ranks for kept in spec.keep],
                # Ctrl-C in the terminal is for the launcher; the keeper must survive it.
                start_new_session=True,
            )
        finally:
            theirs.close()
            for writer in writers:
                os.close(writer)
        message = {
            "launcher": os.getpid(),
            "directory": _encode([os.getcwd()])[0],
            "env": _encode_env(self._env),
            "ranks": described,
        }
        try:
            ours.sendall(json.dumps(message).encode() + b"\n", socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionError):
            pass  # the keeper could not start; _follow() sees the end of the stream and says so
        self._describing = False
        if self._stop_wanted:
            self.stop()
        self._selector.register(ours, selectors.EVENT_READ, None)

    def _follow(self) -> None:
        """Passes on output and events until the keeper has ended and the pipes are empty."""
        give_up = None
        while self._selector.get_map():
            now = time.monotonic()
            if give_up is not None and now >= give_up:
                break
            due = [moment for stream in self._readers if (moment := stream.due()) is not None]
            due += [] if give_up is None else [give_up]
            for key, _ in self._selector.select(max(0.0, min(due) - now) if due else None):
                if key.data is not None:
                    self._read(key.data)
                elif not self._read_events():
                    self._selector.unregister(self._control)
                    give_up = time.monotonic() + _DRAIN_S
            now = time.monotonic()
            for stream in list(self._readers):
                moment = stream.due()
                if moment is not None and moment <= now:
                    stream.show_partial()
        status = self._keeper.wait()
        missing = [spec.rank for spec in self._ranks if spec.rank not in self._outcome.codes]
        if missing:
            # Its death took the ranks with it; their children may still be there, in the ranks' groups.
            for rank in missing:
                if rank in self._pids:
                    _kill_group(self._pids[rank])
            self._outcome.problem = (
                f"horovodrun: the process that watches over the ranks ended with status {status} while "
                f"ranks {missing} were running; the job was ended."
            )

    def _read(self, stream: RankStream) -> bool:
        """Passes on one chunk; false when there is none now, or none any more."""
        reader = self._readers.get(stream)
        if reader is None:
            return False
        try:
            data = os.read(reader, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            stream.feed(data)
            return True
        self._selector.unregister(reader)
        os.close(self._readers.pop(stream))
        stream.end()
        return False

    def _read_events(self) -> bool:
        try:
            data = self._control.recv(_CHUNK)
        except ConnectionError:
            return False
        self._events += data
        *lines, self._events = self._events.split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        return bool(data)

    def _handle(self, event: dict) -> None:
        note = self._output.stderr.note
        kind = event["event"]
        if kind == "start":
            self._pids[event["rank"]] = event["pid"]
            if self._verbose:
                note(f"horovodrun: rank {event['rank']} is process {event['pid']}")
        elif kind == "exit":
            self._handle_exit(event["rank"], event["code"], event["asked"])
        elif kind == "terminating":
            rank, _ = self._outcome.first_failed
            note(f"Terminating remaining workers after failure of Process {rank}.")
        elif kind == "stopping":
            note("horovodrun: stopping all processes")
        elif kind == "unkillable":
            note(f"horovodrun: processes {event['pids']} do not end, although they were sent SIGKILL")

    def _handle_exit(self, rank: int, code: int, asked: bool) -> None:
        # Its last words first. What its children go on writing has to wait for its turn.
        for stream in self._streams[rank]:
            for _ in range(64):
                if not self._read(stream):
                    break
        self._outcome.codes[rank] = code
        if code and not asked and self._outcome.first_failed is None:
            self._outcome.first_failed = (rank, code)
        if code or self._verbose:
            self._output.stderr.note(f"Process {rank} exit with status code {code}.")

    def _end(self) -> None:
        """Ends whatever runs, while an exception is on its way to the caller."""
        while self._keeper is not None and self._keeper.poll() is None:
            self.stop()
            try:
                if self._control not in [key.fileobj for key in self._selector.get_map().values()]:
                    self._keeper.wait()
                self._follow()
            except OutputClosedError:
                self._output.mute()
            except KeyboardInterrupt:
                continue  # impatient: the second request kills

    def _close(self) -> None:
        for stream, reader in self._readers.items():
            os.close(reader)
            try:
                stream.end()
            except OutputClosedError:
                pass
        self._readers.clear()
        self._selector.close()
        control, self._control = self._control, None
        if control is not None:
            control.close()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def _encode(words: Sequence[str]) -> list[str]:
    """Any bytes a command or a variable may hold, as text that JSON keeps."""
    return [os.fsencode(word).decode("latin-1") for word in words]


def _encode_env(env: Mapping[str, str]) -> dict[str, str]:
    return dict(zip(_encode(list(env)), _encode(list(env.values()))))
