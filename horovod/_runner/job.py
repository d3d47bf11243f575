"""Runs a job to its end: starts the ranks on all hosts, passes on their output, and forms the exit code of the job.

Job.run() blocks its thread; Job.stop() may be called from a signal handler of the same thread. The ranks of one host
are a "site": LocalRanks or RemoteRanks, which have the same interface.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from horovod._runner.event_loop import EventLoop, Member, SignalWakeup
from horovod._runner.failures import EndedRanks, about_end, shell_code, signal_of
from horovod._runner.output import Output, OutputClosedError, OutputStream
from horovod._runner.site import STREAMS, Event, Listener, Site
from hvd_core._base.messages import LineBuffer

# After one host has failed, the other hosts get this time to report their failures too.
_OTHER_FAILURES_S = 1.0


@dataclass
class Outcome:
    """How a job ended. Codes are those of failures.py.

    Attributes:
        codes: the end of each rank's process, in the order of their ends.
        failures: (rank, code) of the ranks that failed by themselves, in that order.
        late: of those that did so when all were being ended.
        culprit: the one that failed first, once that is decided.
        quitter: a rank that had ended with exit code 0 before all failures, which follow from that.
        problem: why the job failed, if not because of a rank.
        last_world: the last ranks of an elastic job, whose numbers are those of processes.
        mpirun: its exit code, if it has started the ranks: that of the rank that failed, or MPI's.
        raised_by: the rank whose function was the first to raise, if mpirun has started the ranks.
    """

    codes: dict[int, int] = field(default_factory=dict)
    failures: list[tuple[int, int]] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)
    culprit: tuple[int, int] | None = None
    quitter: int | None = None
    problem: str | None = None
    last_world: list[int] = field(default_factory=list)
    mpirun: int = 0
    raised_by: int | None = None

    @property
    def first_failed(self) -> tuple[int, int] | None:
        """(rank, exit code) of the rank that failed first."""
        return self.culprit or (self.failures[0] if self.failures else None)

    def decide(self, secondary: set[int]) -> None:
        """Chooses the culprit. `secondary`: ranks that failed because another one had failed before. Exit codes alone do
        not show that: a survivor may be seen to end before the rank whose end it reports."""
        if not self.failures:
            return
        self.culprit = next((end for end in self.failures if end[0] not in secondary), None)
        if self.culprit is None:
            first = self.failures[0]
            ended = list(self.codes)[: list(self.codes).index(first[0])]
            self.quitter = next((rank for rank in ended if self.codes[rank] == 0), None)
            # A late end that is not a survivor's may be an answer to SIGTERM: it counts only without another cause.
            others = self.late if self.quitter is None else []
            self.culprit = next((end for end in others if end[0] not in secondary), first)

    @property
    def raised(self) -> int | None:
        """The rank whose exception shows why the job failed."""
        return self.raised_by if self.first_failed is None else self.first_failed[0]

    @property
    def exit_code(self) -> int:
        """The exit code of the job, as a shell shows it."""
        if self.first_failed is not None:
            return shell_code(self.first_failed[1])
        return self.mpirun or (0 if self.problem is None else 1)

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


class Job(Listener):
    """One set of ranks on some hosts.

    Args:
        sites: each runs some of the ranks.
        output: where the ranks' output goes.
        verbose: show the processes of the job.
        start_timeout_s: within which other hosts must answer.
        ends: reports the ends of ranks to the other ranks; None for a job that has no store here.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        output: Output,
        verbose: bool = False,
        start_timeout_s: float = 30.0,
        ends: EndedRanks | None = None,
    ) -> None:
        self._sites = list(sites)
        self._output = output
        self._verbose = verbose
        self._start_timeout_s = start_timeout_s
        self._outcome = Outcome()
        self._ends = ends
        self._streams: dict[tuple[int, int], OutputStream] = {}
        self._termination_reported = False
        self._shell_lines: dict[str | None, LineBuffer] = {}  # of remote shells
        # Of ranks with exit code 0 that ended inside of backends.
        self._last_calls: dict[int | None, str] = {}
        self._loop = EventLoop(self._members)
        self._stops = 0

    def _members(self) -> Iterable[Member]:
        return [*self._streams.values(), *self._sites]

    def run(self) -> Outcome:
        """Starts the ranks and returns when no process of the job is left.

        Raises OSError if processes or output files cannot be made, and OutputClosedError if the reader of the output has
        gone. Any other exception (KeyboardInterrupt) ends the job first and is raised then.
        """
        self._wakeup = SignalWakeup(self._loop.selector)
        try:
            self._run()
        except BaseException as error:
            if isinstance(error, OutputClosedError):
                self._output.mute()
            self._end()
            raise
        finally:
            self._close()
        return self._outcome

    def _run(self) -> None:
        for rank in sorted(rank for site in self._sites for rank in site.ranks):
            for index, name in enumerate(STREAMS):
                self._streams[rank, index] = self._stream(rank, name)
        if self._wait_for_hosts():
            for site in self._sites:
                site.begin()
            self._follow()
            self._decide()

    def _stream(self, rank: int, name: str) -> OutputStream:
        return self._output.stream(rank, name)

    def stop(self) -> None:
        """Ends all ranks: sends SIGTERM, and SIGKILL after a while. The second call sends SIGKILL immediately.
        May be called from a signal handler."""
        self._stops += 1
        for site in self._sites:
            site.request("stop")
        self._loop.wake()

    def _wait_for_hosts(self) -> bool:
        """Waits until all hosts are ready; no rank is started before. Returns False, with the reason in the outcome, if
        a host fails or the timeout expires."""
        for site in self._sites:
            site.open(self._loop.selector, self)
        deadline = time.monotonic() + self._start_timeout_s
        within = f" within {self._start_timeout_s:g} s (--start-timeout)"
        while not all(site.ready for site in self._sites):
            if within and any(site.over for site in self._sites):
                deadline, within = min(deadline, time.monotonic() + _OTHER_FAILURES_S), ""
            undecided = not all(site.ready or site.over for site in self._sites)
            if self._stops or time.monotonic() >= deadline or not undecided:
                break
            self._loop.turn(deadline)
        if self._stops:
            return False
        # After a failure, the hosts that have not answered had no time to do so.
        missing = [site for site in self._sites if site.over or (within and not site.ready)]
        if missing:
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
            self._loop.turn()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        if data:
            self._streams[rank, stream].feed(data)
        elif (rank, stream) in self._streams:
            self._streams.pop((rank, stream)).end()

    def shell_output(self, site: Site, data: bytes) -> None:
        buffer = self._shell_lines.setdefault(site.host, LineBuffer(longest=0))
        lines = buffer.feed(data)
        if not data and (rest := buffer.take_rest()):
            lines.append(rest)
        for line in lines:
            self._output.stderr.note(f"horovodrun: {site.host}: {line.decode(errors='replace').rstrip()}")

    def event(self, site: Site, event: Event) -> None:
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
                self._note_last_call(event["rank"], event["code"], text)
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

    def _handle_exit(self, site: Site, rank: int, code: int, asked: bool) -> None:
        self._outcome.codes[rank] = code
        if self._ends is not None:
            self._ends.report(rank, code, site.host)
        if code and not asked:
            first = self._outcome.exit_code == 0
            self._outcome.failures.append((rank, code))
            if first:
                self._fail_others(site)
        elif code and shell_code(code) not in (128 + signal.SIGTERM, 128 + signal.SIGKILL):
            self._outcome.late.append((rank, code))
        if code or self._verbose:
            self._output.stderr.note(f"Process {rank} exit with status code {shell_code(code)}.")

    def _note_last_call(self, rank: int, code: int, text: str) -> None:
        """Shows what a rank was doing, unless its failure is secondary: a thread of it may still have been in a backend's
        call. An end with exit code 0 is shown once it has turned out to be the job's failure."""
        if code == 0:
            self._last_calls[rank] = text
        elif signal_of(code) is not None or self._ends is None or not self._ends.secondary_failures([rank]):
            self._output.stderr.note(text)

    def _decide(self) -> None:
        """Names the rank that failed first. Called some time after the first failure was seen, or at the end of the job,
        so that the other ranks have reported what they know."""
        failed = [rank for rank, _ in (*self._outcome.failures, *self._outcome.late)]
        self._outcome.decide(self._ends.secondary_failures(failed) if self._ends is not None else set())
        if text := self._last_calls.pop(self._outcome.quitter, ""):
            self._output.stderr.note(text)

    def _handle_loss(self, site: Site, text: str) -> None:
        where = "" if site.host is None or site.over else f"{site.host}: "
        if self._outcome.exit_code == 0 and not self._stops:
            self._outcome.problem = f"horovodrun: {where}{text}\n"
        else:
            self._output.stderr.note(f"horovodrun: {where}{text}")
        self._fail_others(site)

    def _fail_others(self, failed: Site) -> None:
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
        self._loop.close()
