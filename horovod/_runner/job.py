"""Runs a job to its end: starts the ranks on all hosts, passes on their output, and forms the exit code of the job.

Job.run() blocks its thread; Job.stop() may be called from a signal handler of the same thread. The ranks of one host
are a "site": LocalRanks or RemoteRanks, which have the same interface.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from horovod._runner.event_loop import SignalWakeup
from horovod._runner.failures import EndedRanks, about_end, shell_code, signal_of
from horovod._runner.local_ranks import STREAMS, LocalRanks
from horovod._runner.output import Output, OutputClosedError, RankStream
from horovod._runner.remote_ranks import RemoteRanks

# After one host has failed, the other hosts get this time to report their failures too.
_OTHER_FAILURES_S = 1.0


@dataclass
class Outcome:
    """How a job ended. `codes`: the end of each rank's process (exit_codes.py), in the order of their ends.
    `failures`: (rank, exit code) of those that failed by themselves, in that order; `late`: of those that did
    so when all were being ended. `culprit`: the one that failed first, once that is decided. `quitter`: a rank that had
    ended with exit code 0 before all failures, which follow from that. `last_world`: of an elastic job, whose numbers are
    those of processes: its last ranks."""

    codes: dict[int, int] = field(default_factory=dict)
    failures: list[tuple[int, int]] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)
    culprit: tuple[int, int] | None = None
    quitter: int | None = None
    problem: str | None = None
    last_world: list[int] = field(default_factory=list)

    @property
    def first_failed(self) -> tuple[int, int] | None:
        """(rank, exit code) of the rank that failed first."""
        return self.culprit or (self.failures[0] if self.failures else None)

    def decide(self, bereaved: set[int]) -> None:
        """Chooses the culprit. `bereaved`: ranks that failed because another one had failed before. Exit codes alone do
        not tell: a survivor may be seen to end before the rank whose end it reports."""
        if not self.failures:
            return
        self.culprit = next((end for end in self.failures if end[0] not in bereaved), None)
        if self.culprit is None:
            first = self.failures[0]
            ended = list(self.codes)[: list(self.codes).index(first[0])]
            self.quitter = next((rank for rank in ended if self.codes[rank] == 0), None)
            # A late end that is not a survivor's may be an answer to SIGTERM: it counts only without another cause.
            others = self.late if self.quitter is None else []
            self.culprit = next((end for end in others if end[0] not in bereaved), first)

    @property
    def raised(self) -> int | None:
        """The rank whose exception tells why the job failed."""
        return None if self.first_failed is None else self.first_failed[0]

    @property
    def exit_code(self) -> int:
        if self.first_failed is not None:
            return shell_code(self.first_failed[1])
        return 0 if self.problem is None else 1

    def error_text(self) -> str | None:
        """Horovod's text about the first failure, or about another problem; None after success."""
        if self.first_failed is None:
            return self.problem
        rank, code = self.first_failed
        text = (
            "Horovod detected that one or more processes exited with non-zero status, thus causing the job "
            "to be terminated. The first process to do so was:\n"
            f"Process name: {rank}\nExit code: {shell_code(code)}\n"
        )
        if self.quitter is not None:
            text += (
                f"Process {self.quitter} had ended before, with exit code 0, while others still needed it.\n"
            )
        return text


class Job:
    """One set of ranks; each of `sites` runs some of them. Other hosts must answer within `start_timeout_s`."""

    def __init__(
        self,
        sites: Sequence[LocalRanks | RemoteRanks],
        output: Output,
        verbose: bool = False,
        start_timeout_s: float = 30.0,
        outcome: Outcome | None = None,
        ends: EndedRanks | None = None,
    ):
        self._sites = sites
        self._output = output
        self._verbose = verbose
        self._start_timeout_s = start_timeout_s
        self._outcome = outcome or Outcome()
        self._ends = ends
        self._streams: dict[tuple[int, int], RankStream] = {}
        self._termination_reported = False
        self._unfinished_lines: dict[str, bytes] = {}
        self._places: dict[
            int | None, str
        ] = {}  # where ranks with exit code 0 have ended, inside of backends
        self._selector = selectors.DefaultSelector()
        self._stops = 0
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ, lambda: os.eventfd_read(self._wake))

    def run(self) -> Outcome:
        """Starts the ranks and returns when no process of the job is left.

        Raises OSError if processes or output files cannot be made, and OutputClosedError if the reader of the output has
        gone. Any other exception (KeyboardInterrupt) ends the job first and is raised then.
        """
        self._wakeup = SignalWakeup(self._selector)
        try:
            for rank in sorted(rank for site in self._sites for rank in site.ranks):
                for index, name in enumerate(STREAMS):
                    self._streams[rank, index] = self._stream(rank, name)
            if self._wait_for_hosts():
                for site in self._sites:
                    site.begin()
                self._follow()
                self._decide()
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

    def _stream(self, rank: int, name: str) -> RankStream:
        return self._output.stream(rank, name)

    def stop(self) -> None:
        """Ends all ranks: sends SIGTERM, and SIGKILL after a while. The second call sends SIGKILL at once."""
        self._stops += 1
        for site in self._sites:
            site.request("stop")
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _wait_for_hosts(self) -> bool:
        """Waits until all hosts are ready; no rank is started before. Returns False, with the reason in the outcome, if
        a host fails or the time is over."""
        for site in self._sites:
            site.open(self._selector, self)
        deadline, settled = time.monotonic() + self._start_timeout_s, None
        while not all(site.ready for site in self._sites):
            now = time.monotonic()
            if settled is None and any(site.over and not site.ready for site in self._sites):
                settled = min(deadline, now + _OTHER_FAILURES_S)
            undecided = [site for site in self._sites if not site.ready and not site.over]
            end = deadline if settled is None else settled
            if self._stops or now >= end or not undecided:
                break
            self._turn(end)
        if self._stops:
            return False
        missing = [site for site in self._sites if not site.ready]
        if missing:
            within = ""
            if settled is None:
                within = f" within {self._start_timeout_s:g} s (--start-timeout)"
            else:
                missing = [site for site in missing if site.over]  # the others had no time to answer
            lines = "\n".join(site.describe_failure() for site in missing)
            self._outcome.problem = f"horovodrun: not all hosts could be reached{within}:\n{lines}\n"
        elif self._verbose:
            for site in self._sites:
                if site.host is not None:
                    self._output.stderr.note(f"horovodrun: host {site.host}: {site.agent}")
        return not missing

    def _follow(self) -> None:
        """Passes on output and events until no process of the job is left on any host."""
        while not all(site.over for site in self._sites):
            self._turn()

    def _turn(self, until: float | None = None) -> None:
        now = time.monotonic()
        due = [moment for stream in self._streams.values() if (moment := stream.due()) is not None]
        due += [moment for site in self._sites if not site.over and (moment := site.due()) is not None]
        due += [] if until is None else [until]
        for key, _ in self._selector.select(max(0.0, min(due) - now) if due else None):
            key.data()
        now = time.monotonic()
        for stream in self._streams.values():
            moment = stream.due()
            if moment is not None and moment <= now:
                stream.show_partial()
        for site in self._sites:
            site.advance(now)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Called by a site; see Listener."""
        if data:
            self._streams[rank, stream].feed(data)
        elif (rank, stream) in self._streams:
            self._streams.pop((rank, stream)).end()

    def said(self, site, data: bytes) -> None:
        """Called by a site; see Listener."""
        *lines, rest = (self._unfinished_lines.pop(site.host, b"") + data).split(b"\n")
        if rest and data:
            self._unfinished_lines[site.host] = rest
        elif rest:
            lines.append(rest)
        for line in lines:
            self._output.stderr.note(f"horovodrun: {site.host}: {line.decode(errors='replace').rstrip()}")

    def event(self, site, event: dict) -> None:
        """Called by a site; see Listener."""
        note = self._output.stderr.note
        kind = event["event"]
        on_host = "" if site.host is None else f" on {site.host}"
        if kind == "start":
            if self._verbose:
                note(f"horovodrun: {self._called(event['rank'])} is process {event['pid']}{on_host}")
        elif kind == "exit":
            self._handle_exit(site, event["rank"], event["code"], event["asked"])
            if where := about_end(event):
                text = f"horovodrun: {self._called(event['rank'])} has ended {where}."
                self._note_place(event["rank"], event["code"], text)
        elif kind == "terminating":
            self._decide()
            if not self._termination_reported and self._outcome.first_failed is not None:
                note(
                    f"Terminating remaining workers after failure of Process {self._outcome.first_failed[0]}."
                )
            self._termination_reported = True
        elif kind == "stopping":
            if not self._termination_reported:
                note("horovodrun: stopping all processes")
            self._termination_reported = True
        elif kind == "unkillable":
            note(
                f"horovodrun: processes {event['pids']}{on_host} do not end, although they were sent SIGKILL"
            )
        elif kind == "lost":
            self._handle_loss(site, event["text"])

    def _called(self, rank: int) -> str:
        return f"rank {rank}"

    def _handle_exit(self, site, rank: int, code: int, asked: bool) -> None:
        self._outcome.codes[rank] = code
        if self._ends is not None:
            self._ends.tell(rank, code, site.host)
        if code and not asked:
            first = self._outcome.exit_code == 0
            self._outcome.failures.append((rank, code))
            if first:
                self._fail_others(site)
        elif code and shell_code(code) not in (128 + signal.SIGTERM, 128 + signal.SIGKILL):
            self._outcome.late.append((rank, code))
        if code or self._verbose:
            self._output.stderr.note(f"Process {rank} exit with status code {shell_code(code)}.")

    def _note_place(self, rank: int, code: int, text: str) -> None:
        """Tells where a rank has ended, unless it ended because of another one: a thread of it may still have been in a
        backend's call. An end with exit code 0 is told once it has turned out to be the job's failure."""
        if code == 0:
            self._places[rank] = text
        elif signal_of(code) is not None or self._ends is None or not self._ends.bereaved([rank]):
            self._output.stderr.note(text)

    def _decide(self) -> None:
        """Names the rank that failed first. Called some time after the first failure was seen, or at the end of the job,
        so that the other ranks have told what they know."""
        failed = [rank for rank, _ in (*self._outcome.failures, *self._outcome.late)]
        self._outcome.decide(self._ends.bereaved(failed) if self._ends is not None else set())
        if text := self._places.pop(self._outcome.quitter, ""):
            self._output.stderr.note(text)

    def _handle_loss(self, site, text: str) -> None:
        where = "" if site.host is None or site.over else f"{site.host}: "
        if self._outcome.exit_code == 0 and not self._stops:
            self._outcome.problem = f"horovodrun: {where}{text}\n"
        else:
            self._output.stderr.note(f"horovodrun: {where}{text}")
        self._fail_others(site)

    def _fail_others(self, failed) -> None:
        for site in self._sites:
            if site is not failed and not site.over:
                site.request("fail")

    def _end(self) -> None:
        """Ends all processes before an exception is raised to the caller."""
        for site in self._sites:
            if not site.begun:
                site.close()
        while not all(site.over for site in self._sites):
            try:
                self.stop()
                self._follow()
            except OutputClosedError:
                self._output.mute()
            except KeyboardInterrupt:
                continue  # the second request kills

    def _close(self) -> None:
        for site in self._sites:
            site.hang_up()
        for site in self._sites:
            site.close()
        if self._ends is not None:
            self._ends.close()
        for stream in self._streams.values():
            try:
                stream.end()
            except OutputClosedError:
                pass
        self._streams.clear()
        self._wakeup.close()
        self._selector.close()
        wake, self._wake = self._wake, -1
        os.close(wake)
