"""The ranks of another host, on the launcher's side: a remote shell with an agent (agent.py) at its end.

A template of a remote shell is a command with {host} in it; the words of the remote command follow as arguments. If a
shell on the other host reads them, as with ssh, {command} is replaced by all of them as one quoted word. All users of
both machines can see this command line, so it holds no secret: all data, the job's secret included, is sent over the
remote shell's standard input and output. A derived class may have another connection to the agent.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from horovod._runner.event_loop import LoopWriter
from horovod._runner.functions import write_all
from horovod._runner.launch_spec import LaunchSpec, split_words
from horovod._runner.protocol import (
    MAGIC,
    PROTOCOL,
    Kind,
    channel_frame,
    memory_frames,
    split_output,
    split_result,
)
from horovod._runner.site import Listener, RankSpec, Site, SiteState
from hvd_core._base.logs import printable
from hvd_core._base.messages import FrameBuffer, ProtocolError, frame
from hvd_core._config.settings import seconds_of

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
# These join the words of a command by spaces and let a shell split them again.
_QUOTING = ("ssh", "rsh", "remsh")


class RemoteShell:
    """The command template for other hosts. Raises ValueError for a template without {host}, or a template together
    with -p or -i."""

    def __init__(
        self,
        template: str | None = None,
        ssh_options: Sequence[str] = (),
        connect_s: float = 30,
        silence_s: float = 30,
    ):
        self._ssh: list[str] | None = None
        if template:
            if ssh_options:
                raise ValueError(
                    "--ssh-port and --ssh-identity-file belong to the default remote shell; with "
                    "--remote-shell or HOROVOD_REMOTE_SHELL, put -p and -i into the template."
                )
            self._words = split_words("The remote shell", template)
            if not any("{host}" in word for word in self._words):
                raise ValueError(
                    f"The remote shell {template!r} has no {{host}}: put it in the place of the host's name, as in "
                    "'ssh -J gateway {host}'."
                )
        else:
            # Horovod's options, and: no questions, no messages, and an end when the other host is silent.
            options = {
                "PasswordAuthentication": "no",
                "StrictHostKeyChecking": "no",
                "LogLevel": "ERROR",
                "ConnectTimeout": math.ceil(connect_s),
                "ServerAliveInterval": max(1, int(silence_s // 3)),
                "ServerAliveCountMax": 3,
            }
            self._ssh = ["ssh"]
            for name, value in options.items():
                self._ssh += ["-o", f"{name}={value}"]
            self._ssh += ssh_options
            self._words = [*self._ssh, "{host}"]
        quoting = os.path.basename(self._words[0]) in _QUOTING
        if quoting and not any("{command}" in word for word in self._words):
            self._words.append("{command}")

    @classmethod
    def of(cls, spec: LaunchSpec) -> RemoteShell:
        """The remote shell of a job."""
        template = spec.remote_shell or spec.env.get("HOROVOD_REMOTE_SHELL")
        silence_s = seconds_of(spec.env, "HOROVOD_GLOO_TIMEOUT_SECONDS")
        return cls(template, spec.ssh_options, spec.start_timeout_s, silence_s)

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """The command to execute here so that `words` are executed on `host`. Raises ValueError if the host name starts
        with '-'."""
        if host.startswith("-"):
            raise ValueError(f"The host name {host!r} would be taken for an option of the remote shell.")
        made, placed = [], False
        for word in self._words:
            placed = placed or "{command}" in word
            made.append(word.replace("{host}", host).replace("{command}", shlex.join(words)))
        return made if placed else made + list(words)

    def resolve(self, host: str) -> str:
        """The name or address behind a name that only ssh's configuration knows; else the same name."""
        if self._ssh is None or host.startswith("-"):
            return host
        try:
            shown = subprocess.run(
                [*self._ssh, "-G", host],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=10,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return host
        for line in shown.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname" and value:
                return value
        return host


def agent_words(python: str) -> list[str]:
    """The command of the agent. Its PYTHONPATH is this installation's folder, so hosts that share it need no other."""
    packages = str(Path(__file__).resolve().parents[2])
    # Safe path: a file in the user's folder must not hide a module of ours.
    variables = [f"PYTHONPATH={packages}", "PYTHONSAFEPATH=1"]
    return ["env", *variables, python, "-m", "horovod._runner.agent"]


def guarded(command: Sequence[str]) -> list[str]:
    """The same command, which the kernel ends when the thread that starts it ends."""
    return [sys.executable or "python3", "-I", "-S", str(_SUPERVISOR), "execute", str(os.getpid()), *command]


_CHUNK = 1 << 18
# The last output of the remote shell is kept for error messages.
_LONGEST_SAID = 4096
# The end of a login script's output that may hold the agent's first word.
_LONGEST_NOISE = 1 << 16
# They end the remote shell, one after the other.
_SIGNALS = (signal.SIGTERM, signal.SIGKILL)
_SIGNAL_S = 1.0
# Before that, it gets this time to see the end of its standard input.
_HANG_UP_S = 2.0
# The time between the end of the remote shell and the end of its output, in either order.
_SHELL_END_S = 3.0
# What reading a frame, or a message of a worker in it, raises if its payload is not what its kind says.
_INVALID = (ProtocolError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error)
# How long a host may take to end its ranks after a request. Its supervisor gives up after some 15 s.
_ANSWER_S = 20.0


class RemoteRanks(Site):
    """The ranks of another host, at the end of a remote shell.

    Args:
        host: its name.
        shell: the command that runs the agent there.
        ranks: they differ in their numbers and variables.
        env: the variables of all ranks.
        store: the address of the store; None if it does not exist yet.
    """

    def __init__(
        self,
        host: str,
        shell: Sequence[str],
        ranks: Sequence[RankSpec],
        env: Mapping[str, str],
        store: str | None,
    ):
        super().__init__(host, [spec.rank for spec in ranks], SiteState.CONNECTING)
        first = ranks[0]
        self.failure: str | None = None  # why the ranks cannot run there
        self._shell = list(shell)
        self._function = first.function
        self._running = set(self.ranks)
        self._job = {
            "protocol": PROTOCOL,
            "host": host,
            "directory": os.getcwd(),
            "command": list(first.command),
            "env": dict(env),
            "ranks": [{"rank": spec.rank, "env": dict(spec.env)} for spec in ranks],
            "store": store,
            "channel": first.channel,
            "function_bytes": first.function and os.fstat(first.function.function).st_size,
        }
        self._selector: selectors.BaseSelector
        self._listener: Listener
        self._process: subprocess.Popen[bytes] | None = None
        self._opened = False
        self._readers: dict[str, int] = {}  # stdout, stderr and the process itself
        self._outgoing: LoopWriter | None = None
        self._incoming: FrameBuffer | None = None
        self._noise = b""
        self._said = b""
        self._ended = False
        self._give_up = math.inf
        self._signals_sent = 0

    def open(self, selector: selectors.BaseSelector, listener: Listener) -> None:
        """Starts the remote shell; the site is READY when the agent has answered. See Site."""
        self._selector, self._listener = selector, listener
        self._connect()
        self._opened = True
        handlers = {"stdout": self._read, "stderr": self._read_said, "process": self._shell_ended}
        for name, descriptor in self._readers.items():
            selector.register(descriptor, selectors.EVENT_READ, handlers[name])
        self._flush()

    def _connect(self) -> None:
        """Makes the connection to the agent: the outgoing frames, and the readers by name. Raises OSError."""
        process = self._process = subprocess.Popen(
            guarded(self._shell),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C in the terminal is for the launcher, which then ends the other hosts in order.
            start_new_session=True,
        )
        ends = {}
        for name in ("stdin", "stdout", "stderr"):
            with getattr(process, name) as pipe:
                ends[name] = os.dup(pipe.fileno())
            os.set_blocking(ends[name], False)
        self._outgoing = LoopWriter(self._selector, ends.pop("stdin"), self._introduction())
        self._readers = {**ends, "process": os.pidfd_open(process.pid)}

    def _introduction(self) -> Iterator[bytes]:
        yield frame(Kind.JOB, json.dumps(self._job).encode())
        if self._function is not None:
            yield from memory_frames(Kind.FUNCTION, self._function.function)

    def begin(self) -> None:
        self.state = SiteState.RUNNING
        if self._outgoing is not None:
            self._outgoing.add(frame(Kind.START))
            self._flush()

    def request(self, word: str) -> None:
        if self.over or self._outgoing is None:
            return
        self._give_up = min(self._give_up, time.monotonic() + _ANSWER_S)
        self._outgoing.add(frame({"fail": Kind.FAIL, "kill": Kind.KILL}.get(word, Kind.STOP)))
        self._flush()

    def send(self, rank: int, data: bytes) -> None:
        if not self.over and self._outgoing is not None:
            self._outgoing.add(channel_frame(Kind.SEND, rank, data))
            self._flush()

    def _flush(self) -> None:
        try:
            if self._outgoing is not None:
                self._outgoing.flush()
        except OSError:
            pass  # the remote shell has ended; the end of its output is handled elsewhere

    def due(self) -> float | None:
        return None if self.over or self._give_up == math.inf else self._give_up

    def advance(self, now: float) -> None:
        """Writes as much as fits into the pipe, and notices the end. See Site."""
        if self.over or not self._opened:
            return
        if self._outgoing is not None:
            try:
                self._outgoing.write()
            except OSError:
                self._outgoing.unwatch()
        if not self._readers or now >= self._give_up:
            self._end_step(now)

    def _read(self) -> None:
        data = self._receive("stdout")
        if data is None:
            return
        if self._incoming is None:
            self._noise += data
            before, magic, after = self._noise.partition(MAGIC)
            if not magic:
                self._noise = self._noise[-_LONGEST_NOISE:]
                return
            self._noise, self._incoming, data = before, FrameBuffer(), after
        try:
            for kind, payload in self._incoming.feed(data):
                self._take(kind, payload)
        except _INVALID as error:
            self.failure = self.failure or f"the agent sent invalid data ({type(error).__name__}: {error})"
            self._give_up = time.monotonic()

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == Kind.OUTPUT:
            self._listener.output(*split_output(payload))
        elif kind == Kind.EVENT:
            event = json.loads(payload)
            if event["event"] == "exit":
                self._running.discard(event["rank"])
            elif event["event"] == "lost":
                self._running.difference_update(event["ranks"])
            self._listener.event(self, event)
        elif kind == Kind.MESSAGE:
            self._listener.message(*split_result(payload))
        elif kind == Kind.RESULT:
            rank, part = split_result(payload)
            if self._function is None:
                raise ProtocolError("a result, although the ranks run no function")
            write_all(self._function.results[rank], part, "ab")
        elif kind == Kind.READY:
            answer = json.loads(payload)
            self.agent = f"process {answer['pid']} on {answer['host']}, {answer['python']}"
            if self.state is SiteState.CONNECTING:
                self.state = SiteState.READY
        elif kind == Kind.REFUSED:
            self.failure = payload.decode(errors="replace")
        elif kind == Kind.END:
            self._ended = True
        elif kind != Kind.BEAT:
            raise ProtocolError(f"a frame of kind {kind}")

    def _read_said(self) -> None:
        data = self._receive("stderr")
        if data is None:
            if self.begun and "stderr" not in self._readers:
                self._listener.shell_output(self, b"")
            return
        self._said = (self._said + data)[-_LONGEST_SAID:]
        if self.begun:
            self._listener.shell_output(self, data)

    def _receive(self, name: str) -> bytes | None:
        """The data that arrived on one stream, None if no data arrived. Closes the stream at its end."""
        descriptor = self._readers.get(name)
        if descriptor is None:
            return None
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return None
        except ConnectionError:  # where the way is a socket
            data = b""
        if data:
            return data
        self._close_reader(name)
        return None

    def _shell_ended(self) -> None:
        self._close_reader("process")

    def _close_reader(self, name: str) -> None:
        descriptor = self._readers.pop(name)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        # A helper process that the remote shell leaves behind may hold its output open for any time.
        if name != "stderr":
            self._give_up = min(self._give_up, time.monotonic() + _SHELL_END_S)

    def abandon(self) -> None:
        """See Site. advance() ends the remote shell."""
        if self.state not in (SiteState.CONNECTING, SiteState.READY):
            return
        self.state = SiteState.ABANDONED
        self.hang_up()
        self._give_up = time.monotonic() + _HANG_UP_S

    def _end_step(self, now: float) -> None:
        """Ends the remote shell, step by step, as nothing may wait here."""
        if self._process is not None and self._process.poll() is None and self._signals_sent < len(_SIGNALS):
            self._signal(self._process, _SIGNALS[self._signals_sent])
            self._signals_sent += 1
            self._give_up = now + _SIGNAL_S
            return
        begun = self.begun
        self._finish()
        if self._ended:
            return
        how = self._describe_end()
        if begun:
            text = f"lost the host {self.host!r} with ranks {sorted(self._running)}: {how}"
            if self.failure is not None:
                text = f"lost the host {self.host!r}: {self.failure}"
            ranks = sorted(self._running)
            self._listener.event(
                self, {"event": "lost", "ranks": ranks, "text": printable(text + self.said())}
            )
            return
        self.failure = self.failure or f"{how} before the agent answered"

    def _describe_end(self) -> str:
        status = None if self._signals_sent or self._process is None else self._process.poll()
        return "the remote shell " + ("did not answer" if status is None else f"ended with status {status}")

    def said(self) -> str:
        """The output of the remote shell, for an error message."""
        # The agent's part of standard output is not text.
        noise = self._noise[-_LONGEST_SAID:]
        lines = (noise + b"\n" + self._said).decode(errors="replace").split("\n")
        return "".join(f"\n    {line.rstrip()}" for line in lines if line.strip())

    def describe_failure(self) -> str:
        return printable(f"host {self.host!r}: {self.failure or 'no answer'}{self.said()}")

    def hang_up(self) -> None:
        """Closes the agent's standard input, on which it ends its ranks. See Site."""
        if self._outgoing is not None:
            self._outgoing.unwatch()
            os.close(self._outgoing.descriptor)
            self._outgoing = None

    def close(self) -> None:
        """Releases all resources, and ends the remote shell if it still runs. See Site."""
        self.hang_up()
        self._finish()
        for name in list(self._readers):
            descriptor = self._readers.pop(name)
            self._selector.unregister(descriptor)
            os.close(descriptor)
        if self._process is not None:
            for number, wait_s in ((None, _HANG_UP_S), (signal.SIGTERM, _SIGNAL_S), (signal.SIGKILL, None)):
                if number is not None:
                    self._signal(self._process, number)
                try:
                    self._process.wait(wait_s)
                    break
                except subprocess.TimeoutExpired:
                    continue

    def _signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        try:
            os.killpg(process.pid, number)
        except OSError:
            pass
