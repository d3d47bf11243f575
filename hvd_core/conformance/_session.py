"""Runs cases on ranks: starts them, gives each case its deadline, replaces ranks that hang or have died.

A Session is used by one thread. ``ranks`` is a LocalRanks, or launched.LaunchedRanks within a job of mpirun's.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_core._base import sandbox
from hvd_core._base.auth import new_secret
from hvd_core._bootstrap.launchers import VARIABLE_PREFIXES
from hvd_core._bootstrap.launchers.identity import identify
from hvd_core._bootstrap.store import StoreServer
from hvd_core.conformance._verdicts import FAIL, SKIPPED, Result, merge, shown_output


@dataclass(frozen=True)
class Target:
    """``path`` is the library's; ``python`` the class ("module:Class") of a backend written in Python. ``entry`` is the
    entry point ("module:attribute"), ``descriptor`` what it returned; None for a backend that is not in a wheel.
    ``version``: the wheel's."""

    name: str
    path: str
    origin: str
    python: str | None = None
    entry: str | None = None
    descriptor: Any = None
    version: str = ""


def resolve(name: str, library: str | os.PathLike[str] | None = None) -> Target:
    """The target of a run.

    Args:
        name: the name of a backend, or "module:Class" of one in Python that is not installed.
        library: the path of a library to test, not the installed one.

    Raises:
        BackendError: the backend cannot be found, described or loaded.
        FileNotFoundError: ``library`` does not exist.
        ImportError, AttributeError: "module:Class" does not exist.

    Example:
        >>> resolve("shm").origin
        'embedded'
    """
    if library is not None:
        path = Path(library).resolve()
        if not path.is_file():
            raise FileNotFoundError(f"horovod: conformance: the library {path} does not exist")
        return Target(name, str(path), "--library")
    if ":" in name:
        module, _, attribute = name.partition(":")
        return Target(getattr(importlib.import_module(module), attribute).name, "", "a class", python=name)
    from hvd_core.backends._discovery import lookup

    backend = lookup(name, "hvd_core.conformance")
    descriptor = backend.descriptor
    entry = backend.candidate.entry
    version = (backend.candidate.version or "") if descriptor is not None else ""
    if descriptor is not None and descriptor.python is not None:
        return Target(backend.name, "", backend.origin, descriptor.python, entry, descriptor, version)
    return Target(backend.name, str(backend.path()), backend.origin, None, entry, descriptor, version)


if TYPE_CHECKING:
    from hvd_core.conformance._cases import Case

# After a rank has failed, the other ranks get this time to end by themselves.
GRACE_S = 3.0
# Variables that would make a process of the kit a rank of an outer job. The kit sets those of this project itself.
_IDENTITY = tuple(prefix for prefix in VARIABLE_PREFIXES if prefix not in ("HOROVOD_", "SLURM_"))

Answers = dict[int, sandbox.Message | None]
"""Rank -> its answer; None for a rank that died, absent for one that has not answered in time."""


class RanksBroken(RuntimeError):
    """The ranks could not open the backend; the message is the reason."""


class Ranks:
    """The processes that run a session's cases."""

    size: int
    can_restart = False

    def start(self) -> None:
        """Make the ranks open the backend. Raises RanksBroken."""
        raise NotImplementedError

    def order(self, case: str, serial: int) -> None:
        """Make all ranks run a case. ``serial`` is never used twice."""
        raise NotImplementedError

    def collect(self, seconds: float, deaths: bool = False) -> Answers:
        """One answer of each rank. After a failure the others are not waited for much longer; a death is one unless
        ``deaths`` belong to the case."""
        raise NotImplementedError

    def exit_description(self, rank: int) -> str:
        """How a rank ended."""
        return "it does not answer"

    def where(self, rank: int) -> str:
        """Where a rank hangs."""
        return ""

    def stop(self) -> None:
        """End the ranks, if that is possible."""

    def close(self) -> None:
        """End everything."""


class LocalRanks(Ranks):
    """Processes of this machine: ``size`` ranks, or a single process without ranks if ``size`` is 0. A crash, or a side
    effect of loading, stays there.

    ``environment``: variables for them; {rank} in a value is each one's own. ``settings``: of the kit.
    """

    can_restart = True

    def __init__(
        self,
        target: Target,
        size: int,
        settings: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.target, self.size, self.settings = target, size, settings
        self.environment = dict(environment or {})
        self._secret = new_secret()
        self._server = StoreServer(secret=self._secret) if size else None
        self._children: list[sandbox.Child] = []
        self._cases: list[str] = []  # that these processes have run

    def start(self) -> None:
        """Starts the processes that do not run. Raises RanksBroken if one does not start."""
        if self._children:
            return
        target = self.target
        config: dict[str, Any] = {
            **self.settings,
            **{"name": target.name, "path": target.path, "python": target.python, "origin": target.origin},
            **{"described": target.descriptor is not None, "search": sys.path},
        }
        if self._server is not None:
            config |= {"size": self.size, "hosts": [0] * self.size}
            config |= {"store": self._server.address, "secret": self._secret.hex()}
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_IDENTITY)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        # Each thread that a communicator starts may get an arena of glibc's malloc, up to eight per core: memory that is
        # bounded, but looks like a leak (L4.recreate).
        environment.setdefault("MALLOC_ARENA_MAX", "1")
        self._cases = []
        for rank in range(self.size or 1):
            mine = {name: value.replace("{rank}", str(rank)) for name, value in self.environment.items()}
            argv = [sys.executable, "-m", "hvd_core.conformance._worker"]
            # In this process's group: who kills the kit's group ends the ranks too.
            child = sandbox.Child(argv, env=environment | mine, own_group=False)
            self._children.append(child)
            child.send({**config, "rank": rank})
        answers = self.collect(60.0)
        for rank in range(len(self._children)):
            if "ready" not in (answers.get(rank) or {}):
                reason = (answers.get(rank) or {}).get("broken") or self.exit_description(rank)
                self.stop()
                raise RanksBroken(reason)

    def order(self, case: str, serial: int) -> None:
        self._cases.append(case)
        for child in self._children:
            child.send({"case": case, "serial": serial})

    def collect(self, seconds: float, deaths: bool = False) -> Answers:
        answers: Answers = {}
        until = time.monotonic() + seconds
        waiting = {child: rank for rank, child in enumerate(self._children)}
        while waiting and (left := until - time.monotonic()) > 0:
            for child, answer in sandbox.receive_any(waiting, left).items():
                answers[waiting.pop(child)] = answer
                failed = answer.get("verdict") == FAIL if answer else not deaths
                if failed:
                    until = min(until, time.monotonic() + GRACE_S)
        return answers

    def exit_description(self, rank: int) -> str:
        """How a rank ended, with the last lines that it wrote."""
        child = self._children[rank]
        code = child.wait(1.0)
        if code is None:
            return "it still runs"
        words = shown_output(child.errors())
        text = f"it {sandbox.describe_exit(code)}"
        if not self.size and len(self._cases) > 1:
            text += f", perhaps because of the case before it, {self._cases[-2]}"
        return text + (f"; it wrote: {words}" if words else "")

    def where(self, rank: int) -> str:
        """Where a rank that hangs is, as far as Python knows."""
        child = self._children[rank]
        child.signal(signal.SIGUSR1)
        time.sleep(0.3)
        trace = child.errors().rpartition("most recent call first):")[2]
        places = [line.strip().split("/")[-1].replace('"', "") for line in trace.strip().splitlines()[:3]]
        return f"; it is in {' < '.join(places)}" if places else ""

    def stop(self) -> None:
        """Ends all processes, those that hang or compute too."""
        for child in self._children:
            child.close_requests()
        for child in self._children:
            child.wait(0.5)
            child.kill()
        self._children = []

    def close(self) -> None:
        self.stop()
        if self._server is not None:
            self._server.close()


class Session:
    """Runs cases, one at a time. A context manager: leaving it ends all its processes.

    Args:
        target: what ``resolve()`` returned.
        size: the number of ranks.
        modules: modules with further cases.
        quick: smaller counts and fewer repetitions.
        patience: multiplies every timeout.
        ranks: the ranks of a launcher's job; None to start ranks here.
        environment: variables for the ranks; {rank} in a value is each one's own number.

    Example:
        >>> with Session(resolve("shm"), 2, quick=True) as session:
        ...     session.run("L2.barrier").verdict
        'PASS'
    """

    def __init__(
        self, target: Target, size: int = 4, *, modules: Sequence[str] = (), quick: bool = False,
        patience: float = 1.0, ranks: Ranks | None = None, environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        from hvd_core.conformance._cases import all_cases

        self.cases: dict[str, Case] = {c.name: c for c in all_cases(modules)}
        self.target: Target = target
        self.patience: float = patience
        settings = {"modules": list(modules), "quick": quick, "patience": patience}
        self._single = LocalRanks(target, 0, settings)
        self.ranks: Ranks = ranks or LocalRanks(target, size, settings, environment)
        self._serial, self._broken, self._over = 0, "", ""
        self._missing: str | None = None  # until the backend was probed

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.ranks.close()
        self._single.close()

    def unavailable(self) -> str:
        """The reason of the backend's own probe why it cannot work on this machine; "" if it can."""
        if self._missing is None:
            from hvd_core.backends._discovery.installed_backend import ProbeFailed, probe
            from hvd_core.backends._selection.options import found_by_probe
            from hvd_core.backends.descriptor import Available, Unavailable

            descriptor = self.target.descriptor
            answer = probe(descriptor, 5.0) if descriptor is not None else None
            self._missing = ""
            if isinstance(answer, Unavailable) and not isinstance(answer, ProbeFailed):
                self._missing = answer.reason
            if isinstance(answer, Available):
                found_by_probe(self.target.name, answer.library, os.environ)
        return self._missing

    def run(self, name: str) -> Result:
        """Run one case to its verdict.

        Raises:
            KeyError: there is no such case.
        """
        case = self.cases[name]
        missing = self.unavailable()  # the probe may find the vendor's library
        if case.ranks == 0:
            if case.fresh:
                self._single.stop()
            return self._run_on(self._single, case)
        skipped = ""
        if case.ranks > self.ranks.size:
            skipped = f"needs {case.ranks} ranks; start the kit with -np {case.ranks}"
        elif self._over:
            skipped = self._over
        elif missing:
            skipped = f"unavailable here: {missing}"
        elif case.kills and not self.ranks.can_restart:
            skipped = "kills ranks, and the launcher would end the job; run the kit without it"
        if skipped:
            return Result(name, SKIPPED, skipped)
        return Result(name, FAIL, self._broken) if self._broken else self._run_on(self.ranks, case)

    def _run_on(self, ranks: Ranks, case: Case) -> Result:
        try:
            ranks.start()
        except RanksBroken as problem:
            broken = f"the ranks do not open the backend: {problem}"
            if ranks is self.ranks:
                self._broken = broken
            return Result(case.name, FAIL, broken)
        self._serial += 1
        ranks.order(case.name, self._serial)
        started = time.monotonic()
        limit = case.seconds * self.patience
        answers = ranks.collect(limit, case.kills)
        took = time.monotonic() - started
        by_rank = {r: Result.from_dict(a) for r, a in answers.items() if a}
        survivors = case.kills and any(r.verdict != FAIL for r in by_rank.values())
        for rank in set(range(ranks.size or 1)) - set(by_rank):
            if rank in answers:
                how = ranks.exit_description(rank)
                if not (survivors and "SIGKILL" in how):
                    by_rank[rank] = Result(case.name, FAIL, f"died: {how}")
            elif not any(r.verdict == FAIL for r in by_rank.values()):  # a failure leaves others waiting
                text = f"did not end within {limit:.0f} s{ranks.where(rank)}"
                by_rank[rank] = Result(case.name, FAIL, text, [], took)
        result = merge(case.name, by_rank)
        silent = len(answers) < (ranks.size or 1)
        if case.kills or result.verdict == FAIL or silent:
            if ranks.can_restart:
                ranks.stop()
            elif silent:
                self._over = (
                    f"{case.name} has left ranks hanging, and the launcher's ranks cannot be replaced"
                )
        return result


def inside_job() -> bool:
    """Whether a launcher has started this process as one of several ranks."""
    identity = identify(os.environ)
    return bool(identity.launcher != "single" and identity.size != 1)
