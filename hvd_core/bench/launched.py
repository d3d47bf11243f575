"""`hvd bench` by itself: each alternative has its ranks on this machine, which sleep while other alternatives measure."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

from hvd_core.bench.alternative import Alternative
from hvd_core.bench.conductor import Fleet, Spec, Unavailable
from hvd_core.bench.sweep import Teams

# Both of Open MPI's start-up systems refuse root, and more ranks than cores, unless they are told.
_MPIRUN = {
    **{f"{tool}_ALLOW_RUN_AS_ROOT{more}": "1" for tool in ("OMPI", "PRTE") for more in ("", "_CONFIRM")},
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def horovodrun(size: int) -> list[str]:
    """The words before a command that start it on so many ranks of this machine."""
    return [sys.executable, "-m", "horovod.runner.launch", "-np", str(size)]


def mpirun(size: int) -> list[str]:
    """Likewise with the MPI on the PATH. Raises Unavailable."""
    found = shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise Unavailable("there is no mpirun on the PATH")
    return [found, "-np", str(size)]


class Launched(Teams):
    """A context manager: leaving it ends every process that it started."""

    def __init__(self, size: int, device: str, pinned: bool, patience_s: float) -> None:
        self.size = size
        self._env = {"HVD_BENCH_DEVICE": device, "HVD_BENCH_PIN": "1" if pinned else "0"}
        self._device, self._fleet = device, Fleet(size, patience_s)
        self.titles: dict[str, str] = {}

    def __enter__(self) -> Launched:
        self._fleet.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._fleet.__exit__(*error)

    @property
    def failed(self) -> dict[str, str]:
        return self._fleet.failed

    def start(self, entry: str, load: Callable[[], type[Alternative]], backends: list[str]) -> None:
        """Start an alternative, once for each backend if it runs over backends; note why where that is impossible."""
        try:
            kind = load()
        except Exception as error:  # a module of another distribution
            return self._fleet.drop(entry, f"{type(error).__name__}: {error}")
        for backend in backends if kind.over_backends and backends else [""]:
            name = f"{entry}/{backend}" if backend else entry
            self._fleet.start(name, lambda name=name, backend=backend: self._spec(name, entry, kind, backend))
            if name in self._fleet.teams:
                self.titles[name] = kind.title + (f", backend {backend}" if backend else "")
        return None

    def _spec(self, name: str, entry: str, kind: type[Alternative], backend: str) -> Spec:
        kind.check(self._device)
        env = self._env | ({"HOROVOD_BACKEND": backend} if backend else {})
        prefix = {"horovodrun": horovodrun, "mpirun": mpirun}.get(kind.launcher, lambda size: None)(self.size)
        if kind.launcher == "mpirun":
            env |= {key: value for key, value in _MPIRUN.items() if key not in os.environ}
        command = [sys.executable, "-m", "hvd_core.bench.worker", entry]
        return Spec(name.replace("/", "."), kind.title, command, prefix, env)

    def names(self) -> list[str]:
        return list(self._fleet.teams)

    def ask(self, name: str, command: dict) -> list[dict]:
        team, answers = self._fleet.teams[name], []

        def take() -> float:
            answers[:] = team.ask(command)
            return 0.0

        self._fleet.quiet.turn(team.pids.values(), take)
        return answers

    def drop(self, name: str, why: str) -> None:
        self._fleet.drop(name, why)
