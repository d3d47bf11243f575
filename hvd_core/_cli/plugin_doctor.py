"""``hvd plugin doctor [NAME]``: runs every phase in order, and reports why one fails.

Imports and loads all plugins, which no job does: each in a sandbox, with a timeout for each phase.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_core._base import sandbox
from hvd_core._cli import output
from hvd_core._cli.plugin_list import config, export, pinned
from hvd_core._config.hints import pip_install
from hvd_core.backends._candidate import PATH
from hvd_core.backends.errors import BackendError

if TYPE_CHECKING:
    from hvd_core.backends._candidate import Problem
    from hvd_core.backends._discovery.installed_backend import InstalledBackend


GOOD, NOTE, BAD, SKIPPED = "good", "note", "bad", "skipped"


@dataclass
class Step:
    """One check. ``backend`` is "" if the check concerns all backends. ``ended``: whether the check's process ended, or
    was ended, before the check was done."""

    backend: str
    phase: str
    verdict: str
    text: str
    more: list[str] = field(default_factory=list)
    ended: bool = False


# ---- the launcher: which one, how it was recognised, how its ranks would find each other ------------------------------

# Variables of systems that give a job its machines and start no ranks: (variable, the system, the advice).
_SYSTEMS = (
    (
        "SLURM_JOB_ID",
        "a Slurm job, outside of a step",
        "start the ranks with 'srun --mpi=pmi2 -n N python train.py', or with horovodrun -H and the job's hosts",
    ),
    (
        "LSB_JOBID",
        "an LSF job",
        "start the ranks with horovodrun -H and the hosts in LSB_MCPU_HOSTS, or with mpirun; jsrun is not supported",
    ),
    (
        "KUBERNETES_SERVICE_HOST",
        "a pod of Kubernetes",
        "give every pod HOROVOD_RANK, HOROVOD_SIZE, the same HOROVOD_SECRET_KEY and HOROVOD_STORE=rank0://HOST:PORT "
        "(examples/kubernetes)",
    ),
)


def launcher_step(environ: Mapping[str, str]) -> Step:
    """The step. It is bad if ``init()`` would fail because of the variables, or because there is no rendezvous method."""
    from hvd_core._bootstrap import launchers, rendezvous
    from hvd_core._bootstrap.launchers.identity import identify

    try:
        identity = identify(environ)
        choice = rendezvous.choose(identity, environ)
    except ValueError as error:
        return Step("", "launcher", BAD, str(error))
    if identity.launcher == "single":
        return Step(
            "",
            "launcher",
            GOOD,
            "no launcher has started this process: alone, it is a job of one",
            _advice(environ),
        )
    here = "" if identity.local_size is None else f", {identity.local_size} of them on this host"
    text = f"{identity.launcher}: rank {identity.rank} of {identity.size or 'unknown'}{here}"
    used = [str(claim) for claim in launchers.claims(environ)[:1]] or [f"{identity.variable} is set"]
    more = [f"recognised by: {used[0]}", f"rendezvous: {choice.method}, because {choice.reason}"]
    differ = launchers.disagreement(environ)
    more += [differ] if differ else []
    more += [f"better: {choice.remedy}"] if choice.remedy and choice.method != "missing" else []
    if choice.method == "missing":
        return Step(
            "", "launcher", BAD, f"{text}: its ranks cannot find each other", [*more, f"fix: {choice.remedy}"]
        )
    return Step("", "launcher", NOTE if differ else GOOD, text, more)


def _advice(environ: Mapping[str, str]) -> list[str]:
    found = [f"this is {system}: {advice}" for name, system, advice in _SYSTEMS if name in environ]
    path = environ.get("PATH", "")
    starters = [
        command
        for command in ("horovodrun", "mpirun", "srun", "torchrun")
        if shutil.which(command, path=path)
    ]
    names = ", ".join(starters) or "no launcher; python -m horovod.runner.launch works"
    return [
        *found,
        f"launchers on the PATH: {names}",
    ]


# ---- the last phase: opens the backend on one rank and runs a small collective, in a sandbox --------------------------

# Longer than the kit gives a rank to open the backend, so that the kit's own message is shown.
_SECONDS = 90.0


def opened(name: str, seconds: float = _SECONDS) -> Step:
    """Opens a communicator of one rank, on the backend's device if it has one, and checks an allreduce. A backend without
    communicators is opened only."""
    with tempfile.TemporaryDirectory(prefix="hvd-doctor-") as folder:
        report = Path(folder) / "report.json"
        kit = [sys.executable, "-m", "hvd_core.conformance", name, "-np", "1", "--json", str(report)]
        kit += ["--case", "L1.open", "--case", "L2.allreduce"]
        done = sandbox.run(kit, timeout_s=seconds, env=_kit_environment(), cwd=folder, merge_output=True)
        if done.returncode is None:
            return Step(
                name, "open", BAD, f"opening it on one rank takes longer than {seconds:g} s", ended=True
            )
        if done.returncode == 0:
            return Step(name, "open", GOOD, "opened on one rank; an allreduce gives the right values")
        output = done.stdout.strip().splitlines()[-8:]
        if done.signal:
            return Step(
                name, "open", BAD, f"its process {sandbox.describe_exit(done.returncode)}", output, ended=True
            )
        texts = _texts(report) or output
        return Step(name, "open", BAD, "it does not work on one rank", texts)


def _kit_environment() -> dict[str, str]:
    from hvd_core._bootstrap.launchers import VARIABLE_PREFIXES

    # With variables of a launcher the process would be a rank of an outer job, and wait for its peers.
    kept = ("HOROVOD_BACKEND_", "HOROVOD_PLUGINS_TOML")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(VARIABLE_PREFIXES) or name.startswith(kept)
    }


def _texts(report: Path) -> list[str]:
    """The faults that the kit found."""
    try:
        cases = json.loads(report.read_text())["cases"]
    except (OSError, ValueError, KeyError):
        return []
    return [
        f"{case['case']}: {case['text']}"
        for case in cases
        if case.get("text") and case.get("verdict") == "FAIL"
    ]


_STYLES = {BAD: "red", NOTE: "yellow", SKIPPED: "dim"}
_SOURCE = "hvd plugin doctor"
_SHOWN_LINES = 8  # of the output of a process that ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="one backend only")
    parser.add_argument("--no-open", action="store_true", help="open no device and run no collective")
    output.add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Examine one backend or all. Returns FINDINGS if a step is bad."""
    steps = general()
    settings = None if steps[-1].verdict == BAD else config()
    names = [options.name.lower()] if options.name else _names()
    for name in names:
        steps += examine(name, settings, opening=not options.no_open, named=options.name is not None)
    if options.json:
        output.document([asdict(step) for step in steps])
    else:
        _print(steps)
    return output.FINDINGS if any(step.verdict == BAD for step in steps) else output.OK


def _names() -> list[str]:
    from hvd_core.backends import _discovery as discovery

    return list(dict.fromkeys(c.name for c in discovery.candidates()))


def general() -> list[Step]:
    """Steps for the installation, the environment, the launcher, the problems of discovery, and the files; the last one
    is bad if a file cannot be read."""
    return [_installation(), *_environment(), launcher_step(os.environ), *_discovery(), _files()]


def _installation() -> Step:
    from hvd_core.version import __version__

    text = f"hvd-core {__version__}, Python {sys.version.split()[0]}"
    try:
        from hvd_core import _core
    except ImportError as error:
        return Step("", "installation", BAD, f"{text}: the compiled engine does not load: {error}",
                    ["fix: " + pip_install("hvd-core", "--force-reinstall", "--no-deps")])  # fmt: skip
    return Step("", "installation", GOOD, text, [str(_core.__file__)])


def _environment() -> list[Step]:
    shown = {k: v for k, v in sorted(os.environ.items()) if k.startswith("HOROVOD_") and "SECRET" not in k}
    more = [f"{name}={value}" for name, value in shown.items()]
    if "LD_LIBRARY_PATH" in os.environ:
        more.append(f"LD_LIBRARY_PATH={os.environ['LD_LIBRARY_PATH']}")
    return [
        Step(
            "",
            "environment",
            GOOD,
            f"{len(shown)} HOROVOD_* variables" if shown else "no HOROVOD_* variable is set",
            more,
        )
    ]


def _discovery() -> list[Step]:
    from hvd_core.backends import _discovery as discovery

    found = discovery.candidates()
    steps = [
        Step(
            "", "discover", GOOD, f"{len(found)} backends", [f"{c.name}: {c.describe_place()}" for c in found]
        )
    ]
    if "HOROVOD_BACKEND_SPEC" in os.environ:
        steps.append(
            Step(
                "", "discover", NOTE, "HOROVOD_BACKEND_SPEC is set: a launcher made this list, not this host"
            )
        )
    return steps + [_problem_step(problem) for problem in discovery.problems()]


def _problem_step(problem: Problem) -> Step:
    first, *more = problem.text.removeprefix("horovod: ").splitlines()
    return Step("", "discover", NOTE, first, [line.strip() for line in more])


def _files() -> Step:
    try:
        settings = config()
    except ValueError as error:
        first, *more = str(error).removeprefix("horovod: ").splitlines()
        return Step("", "plugins.toml", BAD, first, [line.strip() for line in more])
    files = [f"{file.kind}: {file.path}" for file in getattr(settings, "files", ())]
    return Step("", "plugins.toml", GOOD, f"site policy: {settings.policy() or 'none'}", files)


def examine(name: str, settings: Any, opening: bool = True, named: bool = True) -> list[Step]:
    """The phases of one backend, up to the first that fails. ``settings`` is None if plugins.toml could not be read. A
    probe that answers Unavailable is bad only if the backend was ``named``."""
    from hvd_core.backends import _discovery as discovery

    steps: list[Step] = []
    pin = pinned(name, settings) if settings is not None else None
    try:
        found = discovery.find(name, _SOURCE, pin)
        steps.append(
            Step(
                name,
                "discover",
                GOOD,
                found.describe_place(),
                [f"entry point {found.entry}"] if found.entry else [],
            )
        )
        veto = settings.vetoed_by(name) if settings is not None else None
        if veto is not None:
            return [*steps, Step(name, "policy", NOTE, f"may not be used here: {veto}")]
        if settings is not None:
            export(settings, name)
        backend = discovery.lookup(name, _SOURCE, pin)
    except BackendError as error:
        return [*steps, _failed(name, "discover", error)]
    timeout_s = settings.probe_timeout_s if settings is not None else 5.0
    steps += _sandboxed(backend, timeout_s)
    if steps[-1].verdict == BAD:
        return steps if named else [*steps[:-1], _unnamed(steps[-1])]

    steps.append(opened(name) if opening else Step(name, "open", SKIPPED, "skipped by --no-open"))
    return steps


def _sandboxed(backend: InstalledBackend, timeout_s: float) -> list[Step]:
    """The phases describe, probe and load, up to the first that fails, in a process of their own."""
    from hvd_core._cli.plugin_list import run_sandboxed
    from hvd_core.backends._selection.usable import limits

    def work(send: Callable[[Any], None]) -> None:
        for phase in (_described, lambda backend: _probed(backend, timeout_s), _loaded):
            step = phase(backend)
            send(asdict(step))
            if step.verdict == BAD:
                return

    done = run_sandboxed(work, limits(timeout_s))
    steps = [Step(**value) for value in done.values]
    if done.fault:
        more = [f"it wrote: {line}" for line in done.output[-_SHOWN_LINES:]] + _remedy(backend)
        steps.append(Step(backend.name, done.phase or "load", BAD, done.fault, more, ended=True))
    return steps


def _unnamed(step: Step) -> Step:
    """A bad step of a backend that was not named: a probe that says no is no fault of the installation."""
    return replace(step, verdict=NOTE) if step.phase == "probe" and not step.ended else step


def _remedy(backend: InstalledBackend) -> list[str]:
    wheel = backend.candidate.distribution
    return [f"fix: report it to the author of {wheel}, or pip uninstall {wheel}"] if wheel else []


def _described(backend: InstalledBackend) -> Step:
    if backend.candidate.origin == PATH:
        return Step(backend.name, "describe", SKIPPED, "a library without a wheel has no descriptor")
    try:
        _ = backend.devices
    except BackendError as error:
        return _failed(backend.name, "describe", error)
    more = [f"requires {text}" for text in (backend.descriptor.requires if backend.descriptor else ())]
    tables = ", ".join(sorted(backend.provides))
    return Step(backend.name, "describe", GOOD, f"serves {', '.join(backend.devices)}; has {tables}", more)


def _probed(backend: InstalledBackend, timeout_s: float) -> Step:
    from hvd_core.backends._selection.options import found_by_probe
    from hvd_core.backends.descriptor import Available

    if backend.candidate.origin == PATH:
        return Step(backend.name, "probe", SKIPPED, "a library without a wheel has no probe")
    answer = backend.probe(timeout_s)
    if isinstance(answer, Available):
        found_by_probe(backend.name, answer.library, os.environ)
        return Step(backend.name, "probe", GOOD, answer.detail or "works on this machine")
    return Step(backend.name, "probe", BAD, answer.reason, [f"fix: {answer.fix}"] if answer.fix else [])


def _loaded(backend: InstalledBackend) -> Step:
    from hvd_core.backends._discovery import installed_backend

    try:
        facts = installed_backend.load_backend(backend)
    except BackendError as error:
        step = _failed(backend.name, "load", error)
        step.more += _diagnosed(backend)
        return step
    version = f"{facts['tag']} {facts['version']}, ABI {'.'.join(map(str, facts['abi']))}"
    faults = _option_faults(backend.name, facts["options"])
    more = [f"vendor library {facts['vendor_lib']}"] if facts["vendor_lib"] else []
    more += [f"capabilities {', '.join(facts['caps'])}"]
    return Step(backend.name, "load", BAD if faults else GOOD, faults or version, more)


def _option_faults(name: str, schema: list[dict[str, Any]]) -> str:
    """The faults of the options that are set for this backend, in the words of init()."""
    from hvd_core.backends import _discovery as discovery
    from hvd_core.backends._selection import options as backend_options
    from hvd_core.backends._selection.plan import Usable

    try:
        backend_options.check(
            [Usable(name, "", options=tuple(schema))],
            os.environ,
            lambda: [candidate.name for candidate in discovery.candidates()],
        )
    except ValueError as error:
        return str(error).removeprefix("horovod: ")
    return ""


def _diagnosed(backend: InstalledBackend) -> list[str]:
    """Details about the library, in addition to the loader's message."""
    from hvd_core.backends._discovery.diagnosis import load_diagnosis

    try:
        path = Path(backend.path())
    except BackendError:
        return []
    return [f"library {path}", *load_diagnosis(path)]


def _failed(name: str, phase: str, error: BaseException) -> Step:
    first, *more = str(error).removeprefix("horovod: ").splitlines()
    return Step(name, phase, BAD, first, [line.strip() for line in more])


def _print(steps: list[Step]) -> None:
    rows = []
    for step in steps:
        rows.append((step.verdict, step.backend or "(all)", step.phase, "\n".join([step.text, *step.more])))
    output.table(("verdict", "backend", "phase", "result"), rows, _STYLES)
    bad = [step for step in steps if step.verdict == BAD]
    if bad:
        output.text("", *(f"{step.backend or 'here'}: {step.phase} fails: {step.text}" for step in bad))
