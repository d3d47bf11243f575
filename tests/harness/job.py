"""One job of living ranks: starts it through a launcher, sends it calls, collects each rank's answer.

The ranks (rank_main.py) connect to a Unix socket of this process. A job that has failed a call, in whichever way, is
over: its state is unknown. Used by pool.py, from one thread.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

RANK_MAIN = Path(__file__).with_name("rank_main.py")
# Seconds for the ranks of a failed call to hear of the failure, and for a killed job to be gone.
GRACE = 10.0


class RanksFailed(AssertionError):
    """A check failed on a rank, a rank died, or the ranks did not answer in time; the text says which and why."""


@dataclass
class Outcome:
    """What a check returned and printed on each rank, in rank order."""

    results: list
    outputs: list[str]

    @property
    def output(self) -> str:
        """Everything that all ranks printed, rank after rank."""
        return "".join(self.outputs)


class Job:
    """`ranks` processes that wait for calls.

    `command`: the launcher's words and the interpreter that the ranks run.
    `environment`: of the launcher and the ranks, whole.
    """

    def __init__(self, ranks: int, command, environment, start_seconds: float = 150.0):
        self.ranks = ranks
        self.folder = Path(tempfile.mkdtemp(prefix="hvd-ranks-"))
        self._calls = 0
        self._connections: list[Connection] = []
        self._pids: list[int] = []
        self._log = open(self.folder / "job.log", "wb")  # noqa: SIM115 (lives as long as the job)
        address = str(self.folder / "socket")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(ranks)
            self._launcher = subprocess.Popen(
                [*command, str(RANK_MAIN), address],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=environment,
            )
            self._accept(listener, start_seconds)
        except BaseException:
            self.kill()
            raise
        finally:
            listener.close()

    @property
    def alive(self) -> bool:
        return bool(self._connections) and self._launcher.poll() is None

    def call(self, function: tuple[str, str], arguments: tuple, options: dict, seconds: float) -> Outcome:
        """Executes the function (file, name) on every rank. Raises RanksFailed, or pytest.skip if the ranks skip."""
        __tracebackhide__ = True
        self._calls += 1
        folder = self.folder / f"call-{self._calls}"
        folder.mkdir()
        try:
            for connection in self._connections:
                connection.send((function, arguments, {**options, "folder": str(folder)}))
            answers = self._answers(time.monotonic() + seconds)
            self._judge(function[1], answers, seconds, folder)
        except OSError as error:  # a rank had ended before the call
            text = f"the job of {self.ranks} ranks had ended: {error}\n{self._end_of_log()}"
            self.kill()
            raise RanksFailed(text) from None
        except BaseException:
            self.kill()
            raise
        outputs = [self._output(folder, rank) for rank in range(self.ranks)]
        shutil.rmtree(folder, ignore_errors=True)
        kind, value = answers[0]
        if kind == "skipped":
            import pytest  # here, as the ranks import this package too

            pytest.skip(value)
        return Outcome([answers[rank][1] for rank in range(self.ranks)], outputs)

    def close(self) -> None:
        """Lets the ranks end by themselves, as their connections are closed."""
        for connection in self._connections:
            connection.close()
        self._connections = []
        self._end(GRACE)

    def kill(self) -> None:
        """Ends the job at once."""
        for connection in self._connections:
            connection.close()
        self._connections = []
        for pid in self._pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self._end(1.0)

    def _end(self, patience: float) -> None:
        launcher = getattr(self, "_launcher", None)
        if launcher is not None:
            for end in (launcher.terminate, launcher.kill):
                try:
                    launcher.wait(patience)
                    break
                except subprocess.TimeoutExpired:
                    end()
                    patience = GRACE
            launcher.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self, listener: socket.socket, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        listener.settimeout(0.2)
        found: dict[int, tuple[int, Connection]] = {}
        while len(found) < self.ranks:
            if self._launcher.poll() is not None or time.monotonic() > deadline:
                raise RanksFailed(
                    f"{len(found)} of {self.ranks} ranks started within {seconds:.0f} s; launcher's exit code "
                    f"{self._launcher.poll()}\n{self._end_of_log()}"
                )
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                continue
            accepted.setblocking(True)
            connection = Connection(accepted.detach())
            rank, pid = connection.recv()
            found[rank] = (pid, connection)
        self._pids = [found[rank][0] for rank in range(self.ranks)]
        self._connections = [found[rank][1] for rank in range(self.ranks)]

    def _answers(self, deadline: float) -> dict[int, tuple[str, object]]:
        """(kind, value) by rank: "returned", "skipped", "raised" or "died". Ranks without an answer are left out.

        After a failure the other ranks have GRACE seconds to hear of it.
        """
        answers: dict[int, tuple[str, object]] = {}
        waiting = {connection: rank for rank, connection in enumerate(self._connections)}
        while waiting and (left := deadline - time.monotonic()) > 0:
            for connection in wait(list(waiting), timeout=left):
                rank = waiting.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except (EOFError, OSError):
                    answers[rank] = ("died", "the process ended without an answer")
                if answers[rank][0] in ("raised", "died"):
                    deadline = min(deadline, time.monotonic() + GRACE)
        return answers

    def _judge(self, name: str, answers: dict, seconds: float, folder: Path) -> None:
        __tracebackhide__ = True
        kinds = {kind for kind, _ in answers.values()}
        if len(answers) == self.ranks and kinds in ({"returned"}, {"skipped"}):
            return
        stacks = self._stacks([rank for rank in range(self.ranks) if rank not in answers])
        raised = {rank: value for rank, (kind, value) in answers.items() if kind == "raised"}
        causes = [rank for rank, value in raised.items() if not value["is_of_the_job"]]
        first = f": rank {min(causes)} raised {raised[min(causes)]['error']}" if causes else ""
        lines = [f"{name} on {self.ranks} ranks{first}"]
        for rank in sorted(range(self.ranks), key=lambda rank: rank not in causes):
            kind, value = answers.get(rank, ("gave no answer", ""))
            if kind == "gave no answer":
                when = "after another rank had failed" if raised else f"within {seconds:.0f} s"
                lines.append(f"--- rank {rank} gave no answer {when}; its stacks:\n{stacks[rank]}")
            elif kind == "raised":
                consequence = causes and rank not in causes
                lines.append(f"--- rank {rank} raised {value['error'] if consequence else value['text']}")
            else:
                lines.append(f"--- rank {rank} {kind}: {'' if kind == 'returned' else value}")
            if output := self._output(folder, rank):
                lines.append(f"    it printed:\n{output[-4000:]}")
        raise RanksFailed("\n".join([*lines, self._end_of_log()]))

    def _stacks(self, ranks: list[int]) -> dict[int, str]:
        """The Python stacks of all threads of these ranks, written by faulthandler when the signal comes."""
        for rank in ranks:
            try:
                os.kill(self._pids[rank], signal.SIGUSR2)
            except OSError:
                pass
        end = time.monotonic() + 10
        texts = {}
        for rank in ranks:
            path = self.folder / f"stacks.{rank}"
            texts[rank], before = path.read_text(errors="replace"), None
            # It comes in pieces: complete when it has the outermost frame, and grows no more.
            while (texts[rank] != before or "in <module>" not in before) and time.monotonic() < end:
                time.sleep(0.05)
                texts[rank], before = path.read_text(errors="replace"), texts[rank]
        return texts

    @staticmethod
    def _output(folder: Path, rank: int) -> str:
        path = folder / f"output.{rank}"
        return path.read_text(errors="replace") if path.exists() else ""

    def _end_of_log(self) -> str:
        text = (self.folder / "job.log").read_text(errors="replace")
        return f"--- end of the launcher's output:\n{text[-2000:]}" if text.strip() else ""
