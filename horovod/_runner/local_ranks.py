"""Starts ranks on this machine and follows them to their end: in the launcher, and in the agent on other hosts.

The processes belong to the supervisor (supervisor.py). This side reads the output of the ranks and the reports of the
supervisor, and hands both to a Listener.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod._runner.failures import LastCall
from horovod._runner.site import STREAMS, Event, Listener, RankSpec, Site, SiteState

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_CHUNK = 1 << 16
# After all processes have ended, the rest of the output is read from the pipes for this time.
_DRAIN_S = 2.0


class LocalRanks(Site):
    """The ranks of one job on this host. The `data` of each selector key is a function to call."""

    def __init__(self, ranks: Sequence[RankSpec], env: Mapping[str, str]):
        super().__init__(None, [spec.rank for spec in ranks], SiteState.READY)
        self._specs = ranks
        self._env = env
        self._running = set(self.ranks)
        self._readers: dict[tuple[int, int], int] = {}
        self._pids: dict[int, int] = {}
        self._channels: dict[int, socket.socket] = {}
        self._last_calls: dict[int, LastCall] = {}
        self._selector: selectors.BaseSelector
        self._listener: Listener
        self._control: socket.socket | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._events = b""
        self._describing = True
        self._wanted: list[str] = []
        self._ended = False  # the supervisor has closed its end
        self._paused = False
        self._give_up: float | None = None

    def open(self, selector: selectors.BaseSelector, listener: Listener) -> None:
        self._selector, self._listener = selector, listener

    def begin(self) -> None:
        self.state = SiteState.RUNNING
        try:
            self._begin()
        except BaseException:
            self.hang_up()
            self.close()
            raise

    def _begin(self) -> None:
        """Starts the supervisor, and sends it the description of the ranks."""
        ours, theirs = socket.socketpair()
        self._control = ours
        with contextlib.ExitStack() as copies:  # of what the supervisor inherits
            copies.callback(theirs.close)
            described = [self._describe(spec, copies) for spec in self._specs]
            inherited = {fd for entry in described for fd in (*map(entry.get, STREAMS), *entry["keep"])}
            self._supervisor = subprocess.Popen(
                [sys.executable or "python3", "-I", "-S", str(_SUPERVISOR), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *inherited],
                # Ctrl-C in the terminal is for the launcher; the supervisor must survive it.
                start_new_session=True,
            )
        message = {
            "launcher": os.getpid(),
            "directory": os.getcwd(),
            "env": dict(self._env),
            "announce": any(spec.channel is not None for spec in self._specs),
            "ranks": described,
        }
        try:
            ours.sendall(json.dumps(message).encode() + b"\n", socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionError):
            pass  # the supervisor could not start; the end of the stream is handled elsewhere
        self._describing = False
        while self._wanted:
            self.request(self._wanted.pop(0))
        self._selector.register(ours, selectors.EVENT_READ, self._read_events)

    def _describe(self, spec: RankSpec, copies: contextlib.ExitStack) -> dict[str, Any]:
        """A rank for the supervisor. `copies` closes the ends of pipes and sockets that the rank inherits."""
        env = dict(spec.env)
        keep: list[int] = []
        if spec.function is not None:
            env |= spec.function.variables(spec.rank)
            keep += spec.function.descriptors(spec.rank)
        if spec.channel is not None:
            ours, theirs = socket.socketpair()
            copies.callback(theirs.close)
            ours.setblocking(False)
            self._channels[spec.rank] = ours
            self._selector.register(ours, selectors.EVENT_READ, functools.partial(self._receive, spec.rank))
            env |= {spec.channel: str(theirs.fileno()), "HOROVOD_ELASTIC_WORKER": str(spec.rank)}
            keep.append(theirs.fileno())
        if spec.notes_calls:
            self._last_calls[spec.rank] = last_call = LastCall()
            env |= last_call.variables()
        entry: dict[str, Any] = {"rank": spec.rank, "command": list(spec.command), "env": env, "keep": keep}
        for index, name in enumerate(STREAMS):
            reader, entry[name] = os.pipe()
            copies.callback(os.close, entry[name])
            os.set_blocking(reader, False)
            self._readers[spec.rank, index] = reader
            self._watch((spec.rank, index))
        return entry

    def send(self, rank: int, data: bytes) -> None:
        channel = self._channels.get(rank)
        if channel is not None:
            try:
                channel.send(data, socket.MSG_NOSIGNAL)
            except OSError:
                pass

    def _receive(self, rank: int) -> bool:
        """Passes on the bytes that a rank has sent; returns False if there are none now, or at the end of the channel."""
        channel = self._channels.get(rank)
        if channel is None:
            return False
        try:
            data = channel.recv(_CHUNK)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self._close_channel(rank)
            return False
        self._listener.message(rank, data)
        return True

    def _close_channel(self, rank: int) -> None:
        channel = self._channels.pop(rank, None)
        if channel is not None:
            self._selector.unregister(channel)
            channel.close()

    def request(self, word: str) -> None:
        if self._describing:
            # A signal handler must not write into the middle of the description.
            self._wanted.append(word)
        elif self._control is not None:
            try:
                self._control.send(
                    json.dumps(word).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
                )
            except OSError:
                pass  # the supervisor has ended, and with it the ranks

    def hang_up(self) -> None:
        if self._control is not None:
            try:
                self._control.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def pause(self, paused: bool) -> None:
        """Stops reading the ranks' output, or reads it again."""
        if paused == self._paused:
            return
        self._paused = paused
        for key in self._readers:
            if paused:
                self._selector.unregister(self._readers[key])
            else:
                self._watch(key)
        if self._ended:
            self._give_up = None if paused else time.monotonic() + _DRAIN_S

    def _watch(self, key: tuple[int, int]) -> None:
        self._selector.register(self._readers[key], selectors.EVENT_READ, functools.partial(self._read, key))

    def _read(self, key: tuple[int, int]) -> bool:
        """Passes on one chunk of output; returns False if there is none now, or at the end of the stream."""
        reader = self._readers.get(key)
        if reader is None:
            return False
        try:
            data = os.read(reader, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._end_stream(key)
            return False
        self._listener.output(*key, data)
        return True

    def _end_stream(self, key: tuple[int, int]) -> None:
        reader = self._readers.pop(key)
        if not self._paused:
            self._selector.unregister(reader)
        os.close(reader)
        self._listener.output(*key, b"")

    def _read_events(self) -> None:
        control = self._control
        assert control is not None
        try:
            data = control.recv(_CHUNK)
        except ConnectionError:
            data = b""
        self._events += data
        *lines, self._events = self._events.split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        if not data:
            self._selector.unregister(control)
            self._ended = True
            self._give_up = None if self._paused else time.monotonic() + _DRAIN_S

    def _handle(self, event: Event) -> None:
        if event["event"] == "start":
            self._pids[event["rank"]] = event["pid"]
        elif event["event"] == "exit":
            # Pass on the rank's own output first. Output of its children is limited here and read later.
            for index in range(len(STREAMS)):
                for _ in range(64):
                    if not self._read((event["rank"], index)):
                        break
            while self._receive(event["rank"]):
                pass
            self._close_channel(event["rank"])
            self._running.discard(event["rank"])
            last_call = self._last_calls.get(event["rank"])
            if not event["asked"] and last_call is not None:
                event["inside"] = last_call.content()
        self._listener.event(self, event)

    def due(self) -> float | None:
        return None if self.over else self._give_up

    def advance(self, now: float) -> None:
        if self.over or not self._ended:
            return
        if self._readers and (self._give_up is None or now < self._give_up):
            return
        self._finish()
        assert self._supervisor is not None
        status = self._supervisor.wait()
        if not self._running:
            return
        # The ranks died with the supervisor; their children may still run, in the ranks' process groups.
        for rank in self._running:
            if rank in self._pids:
                _kill_group(self._pids[rank])
        text = (
            f"the process that watches over the ranks ended with status {status} while "
            f"ranks {sorted(self._running)} were running; the job was ended."
        )
        self._listener.event(self, {"event": "lost", "ranks": sorted(self._running), "text": text})

    def abandon(self) -> None:
        self.close()

    def close(self) -> None:
        self._finish()
        for key in list(self._readers):
            reader = self._readers.pop(key)
            if not self._paused:
                self._selector.unregister(reader)
            os.close(reader)
        for rank in list(self._channels):
            self._close_channel(rank)
        for last_call in self._last_calls.values():
            last_call.close()
        self._last_calls.clear()
        control, self._control = self._control, None
        if control is not None:
            with contextlib.suppress(KeyError):  # its end was read, or nothing was sent
                self._selector.unregister(control)
            control.close()
        if self._supervisor is not None:
            self._supervisor.wait()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
