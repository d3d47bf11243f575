"""Runs cases on ranks: starts them, gives each case its deadline, replaces ranks that hang or have died.

A Session is used by one thread. ``ranks`` is a LocalRanks, or launched.LaunchedRanks within a job of mpirun's.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from hvd_core._base.auth import new_secret
from hvd_core._bootstrap import StoreServer
from hvd_core._bootstrap.identity import identify
from hvd_core.conformance import interpreter
from hvd_core.conformance.resolve import Target
from hvd_core.conformance.verdicts import FAIL, SKIPPED, Result, merge, shown_output

# After a rank has failed, the other ranks get this time to end by themselves.
GRACE_S = 3.0
_IDENTITY = ("OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "TORCHELASTIC_")


class RanksBroken(RuntimeError):
    """The ranks could not open the backend; the text is the reason."""


class LocalRanks:
    """``size`` processes of this machine. ``environment``: variables for them; {rank} in a value is each one's own."""

    can_restart = True

    def __init__(
        self, target: Target, size: int, environment: Mapping[str, str] | None = None, **settings
    ) -> None:
        self.target, self.size, self.settings = target, size, settings
        self.environment = dict(environment or {})
        self._secret = new_secret()
        self._server = StoreServer(secret=self._secret)
        self._processes: list[subprocess.Popen] = []
        self._errors: list = []

    def start(self) -> None:
        """Starts the ranks that do not run. Raises RanksBroken if a rank does not start."""
        if self._processes:
            return
        target = self.target
        config = {
            **self.settings,
            **{"name": target.name, "path": target.path, "python": target.python, "search": sys.path},
            **{"size": self.size, "hosts": [0] * self.size},
            **{"store": self._server.address, "secret": self._secret.hex()},
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_IDENTITY)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        # Each thread that a communicator starts may get an arena of glibc's malloc, up to eight per core: memory that is
        # bounded, but looks like a leak (L4.recreate).
        environment.setdefault("MALLOC_ARENA_MAX", "1")
        for rank in range(self.size):
            errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
            mine = {name: value.replace("{rank}", str(rank)) for name, value in self.environment.items()}
            process = subprocess.Popen(
                [*interpreter.WORDS, "-m", "hvd_core.conformance.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0, env=environment | mine,
            )  # fmt: skip
            self._processes.append(process)
            self._errors.append(errors)
            self._write(rank, {**config, "rank": rank})
        answers = self.collect(60.0)
        for rank in range(self.size):
            if "ready" not in (answers.get(rank) or {}):
                reason = (answers.get(rank) or {}).get("broken") or self.exit_description(rank)
                self.stop()
                raise RanksBroken(reason)

    def order(self, case: str, serial: int) -> None:
        """Tells all ranks to run a case."""
        for rank in range(self.size):
            self._write(rank, {"case": case, "serial": serial})

    def collect(self, seconds: float, deaths: bool = False) -> dict[int, dict | None]:
        """One answer of each rank; None for a rank that died, absent for one that does not answer in time.

        After a failure the others are not waited for much longer; a death is one unless ``deaths`` belong to the case.
        """
        answers: dict[int, dict | None] = {}
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            buffers = {}
            for rank, process in enumerate(self._processes):
                selector.register(process.stdout, selectors.EVENT_READ, rank)
                buffers[rank] = b""
            while len(answers) < self.size:
                left = until - time.monotonic()
                if left <= 0:
                    break
                for key, _ in selector.select(left):
                    rank = key.data
                    chunk = os.read(key.fd, 1 << 20)
                    buffers[rank] += chunk
                    if chunk and b"\n" not in buffers[rank]:
                        continue
                    answers[rank] = json.loads(buffers[rank]) if chunk else None
                    selector.unregister(key.fileobj)
                    failed = answers[rank].get("verdict") == FAIL if answers[rank] else not deaths
                    if failed:
                        until = min(until, time.monotonic() + GRACE_S)
        return answers

    def _write(self, rank: int, message: dict) -> None:
        try:
            self._processes[rank].stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            pass  # it has died; collect() finds out

    def exit_description(self, rank: int) -> str:
        """How a rank ended, with the last lines that it wrote."""
        process, errors = self._processes[rank], self._errors[rank]
        try:
            code = process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it still runs"
        end = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        errors.seek(0)
        words = shown_output(errors.read().decode(errors="replace"))
        return end + (f"; it wrote: {words}" if words else "")

    def where(self, rank: int) -> str:
        """Where a rank that hangs is, as far as Python knows."""
        process, errors = self._processes[rank], self._errors[rank]
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        errors.seek(0)
        trace = errors.read().decode(errors="replace").rpartition("most recent call first):")[2]
        places = [line.strip().split("/")[-1].replace('"', "") for line in trace.strip().splitlines()[:3]]
        return f"; it is in {' < '.join(places)}" if places else ""

    def stop(self) -> None:
        """Ends all ranks, those that hang or compute too."""
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(0.5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        for errors in self._errors:
            errors.close()
        self._processes, self._errors = [], []

    def close(self) -> None:
        """Ends all."""
        self.stop()
        self._server.close()


class Session:
    """Runs cases, one at a time. A context manager."""

    def __init__(
        self, target: Target, size: int = 4, *, modules: Sequence[str] = (), quick: bool = False,
        patience: float = 1.0, ranks=None, environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        from hvd_core.conformance.cases import all_cases

        self.cases = {c.name: c for c in all_cases(modules)}
        self.target, self.patience, self.modules = target, patience, modules
        self._bare = None
        self.ranks = ranks or LocalRanks(
            target, size, environment, modules=list(modules), quick=quick, patience=patience
        )
        self._serial, self._broken, self._over = 0, "", ""
        self._missing: str | None = None  # until the backend's probe was asked

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_) -> None:
        self.ranks.close()
        if self._bare is not None:
            self._bare.close()

    def unavailable(self) -> str:
        """The reason of the backend's own probe why it cannot work on this machine; "" if it can."""
        if self._missing is None:
            from hvd_core.backends.descriptor import Available, Unavailable
            from hvd_core.backends.discovery.describe_and_probe import ProbeFailed, probe
            from hvd_core.backends.selection.backend_options import found_by_probe

            descriptor = self.target.descriptor
            answer = probe(descriptor, 5.0) if descriptor is not None else None
            unavailable = isinstance(answer, Unavailable) and not isinstance(answer, ProbeFailed)
            self._missing = answer.reason if unavailable else ""
            if isinstance(answer, Available):
                found_by_probe(self.target.name, answer.library, os.environ)
        return self._missing

    def run(self, name: str) -> Result:
        """Runs one case to its verdict. KeyError for a case that does not exist."""
        case = self.cases[name]
        self.unavailable()  # the probe may find the vendor's library
        if case.ranks == 0:
            return self._alone(case)
        if case.ranks > self.ranks.size:
            return Result(name, SKIPPED, f"needs {case.ranks} ranks; start the kit with -np {case.ranks}")
        if self._over:
            return Result(name, SKIPPED, self._over)
        if missing := self.unavailable():
            return Result(name, SKIPPED, f"unavailable here: {missing}")
        if case.kills and not self.ranks.can_restart:
            return Result(
                name, SKIPPED, "kills ranks, and the launcher would end the job; run the kit without it"
            )
        if self._broken:
            return Result(name, FAIL, self._broken)
        try:
            self.ranks.start()
        except RanksBroken as problem:
            self._broken = f"the ranks do not open the backend: {problem}"
            return Result(name, FAIL, self._broken)
        return self._on_ranks(case)

    def _on_ranks(self, case) -> Result:
        self._serial += 1
        self.ranks.order(case.name, self._serial)
        started = time.monotonic()
        limit = case.seconds * self.patience
        answers = self.ranks.collect(limit, case.kills)
        took = time.monotonic() - started
        by_rank = {r: Result.from_dict(a) for r, a in answers.items() if a}
        lost = case.kills and any(r.verdict != FAIL for r in by_rank.values())
        for rank in range(self.ranks.size):
            if rank in by_rank:
                continue
            if rank in answers:
                if lost and not self._was_killed(rank):
                    lost = False
                if not lost:
                    by_rank[rank] = Result(case.name, FAIL, f"died: {self.ranks.exit_description(rank)}")
            elif any(r.verdict == FAIL for r in by_rank.values()):
                pass  # the others' failure has left it waiting
            else:
                text = f"did not end within {limit:.0f} s{self.ranks.where(rank)}"
                by_rank[rank] = Result(case.name, FAIL, text, [], took)
        result = merge(case.name, by_rank)
        if case.kills or result.verdict == FAIL or len(answers) < self.ranks.size:
            if self.ranks.can_restart:
                self.ranks.stop()
            elif len(answers) < self.ranks.size:
                self._over = (
                    f"{case.name} has left ranks hanging, and the launcher's ranks cannot be replaced"
                )
        return result

    def _was_killed(self, rank: int) -> bool:
        return "SIGKILL" in self.ranks.exit_description(rank)

    def _alone(self, case) -> Result:
        if self._bare is None:
            from hvd_core.conformance.alone import Alone

            self._bare = Alone(self.target, self.modules, self.patience)
        return self._bare.run(case)


def inside_job() -> bool:
    """Whether a launcher has started this process as one of several ranks."""
    identity = identify(os.environ)
    return identity.launcher != "single" and identity.size != 1
