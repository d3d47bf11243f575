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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_core._base import sandbox
from hvd_core._cli import output
from hvd_core._cli.examination import config, examine, export, pinned
from hvd_core._config.packaged import reinstall
from hvd_core.backends._candidate import PATH
from hvd_core.backends._phases import DESCRIBE, LOAD, PROBE
from hvd_core.backends.errors import BackendError

if TYPE_CHECKING:
    from hvd_core._config.plugins_toml import PluginsConfig
    from hvd_core.backends._discovery.installed_backend import InstalledBackend

GOOD, NOTE, BAD, SKIPPED = "good", "note", "bad", "skipped"
_STYLES = {BAD: "red", NOTE: "yellow", SKIPPED: "dim"}
_SOURCE = "hvd plugin doctor"
_SHOWN_LINES = 8  # of the output of a process that ended
_OPEN_SECONDS = (
    90.0  # longer than the kit gives a rank to open the backend, so that the kit's own message is shown
)


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


def _of_message(backend: str, phase: str, verdict: str, message: object) -> Step:
    first, *more = str(message).removeprefix("horovod: ").splitlines()
    return Step(backend, phase, verdict, first, [line.strip() for line in more])


# ---- the launcher: which one, how it was recognised, how its ranks would find each other ------------------------------

# Variables of systems that give a job its machines and start no ranks -> (the system, the advice).
_SYSTEMS = {
    "SLURM_JOB_ID": (
        "a Slurm job, outside of a step",
        "start the ranks with 'srun --mpi=pmi2 -n N python train.py', or with horovodrun -H and the job's hosts",
    ),
    "LSB_JOBID": (
        "an LSF job",
        "start the ranks with horovodrun -H and the hosts in LSB_MCPU_HOSTS, or with mpirun; jsrun is not supported",
    ),
    "KUBERNETES_SERVICE_HOST": (
        "a pod of Kubernetes",
        "give every pod HOROVOD_RANK, HOROVOD_SIZE, the same HOROVOD_SECRET_KEY and HOROVOD_STORE=rank0://HOST:PORT "
        "(examples/kubernetes)",
    ),
}


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
        more = [f"this is {what}: {advice}" for name, (what, advice) in _SYSTEMS.items() if name in environ]
        commands = dict.fromkeys(launcher.command for launcher in launchers.LAUNCHERS if launcher.command)
        found = [command for command in commands if shutil.which(command, path=environ.get("PATH", ""))]
        none = "no launcher; python -m horovod.runner.launch works"
        more.append(f"launchers on the PATH: {', '.join(found) or none}")
        text = "no launcher has started this process: alone, it is a job of one"
        return Step("", "launcher", GOOD, text, more)
    here = "" if identity.local_size is None else f", {identity.local_size} of them on this host"
    text = f"{identity.launcher}: rank {identity.rank} of {identity.size or 'unknown'}{here}"
    used = [str(claim) for claim in launchers.claims(environ)[:1]] or [f"{identity.variable} is set"]
    more = [f"recognised by: {used[0]}", f"rendezvous: {choice.method}, because {choice.reason}"]
    differ = launchers.disagreement(environ)
    more += [differ] if differ else []
    if choice.method == "missing":
        more.append(f"fix: {choice.remedy}")
        return Step("", "launcher", BAD, f"{text}: its ranks cannot find each other", more)
    more += [f"better: {choice.remedy}"] if choice.remedy else []
    return Step("", "launcher", NOTE if differ else GOOD, text, more)


# ---- the installation -------------------------------------------------------------------------------------------------


def general() -> list[Step]:
    """Steps for the installation, the environment, the launcher, and the problems of discovery."""
    from hvd_core._config.settings import OTHERS, read_environment
    from hvd_core.backends import _discovery as discovery

    shown = [
        f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("HOROVOD_") and "SECRET" not in k
    ]
    count = f"{len(shown)} HOROVOD_* variables" if shown else "no HOROVOD_* variable is set"
    if "LD_LIBRARY_PATH" in os.environ:
        shown.append(f"LD_LIBRARY_PATH={os.environ['LD_LIBRARY_PATH']}")
    environment = Step("", "environment", GOOD, count, shown)
    try:
        read_environment()
        for setting in OTHERS:
            setting.read(os.environ)
    except ValueError as error:
        environment = Step("", "environment", BAD, str(error), shown)
    found = discovery.candidates()
    places = [f"{candidate.name}: {candidate.describe_place()}" for candidate in found]
    steps = [
        _installation(),
        environment,
        launcher_step(os.environ),
        Step("", "discover", GOOD, f"{len(found)} backends", places),
    ]
    if "HOROVOD_BACKEND_SPEC" in os.environ:
        text = "HOROVOD_BACKEND_SPEC is set: a launcher made this list, not this host"
        steps.append(Step("", "discover", NOTE, text))
    return steps + [_of_message("", "discover", NOTE, problem.text) for problem in discovery.problems()]


def _installation() -> Step:
    from hvd_core.version import __version__

    text = f"hvd-core {__version__}, Python {sys.version.split()[0]}"
    try:
        from hvd_core import _core
    except ImportError as error:
        text += f": the compiled engine does not load: {error}"
        return Step("", "installation", BAD, text, [f"fix: {reinstall()}"])
    return Step("", "installation", GOOD, text, [str(_core.__file__)])


def _files() -> tuple[Step, PluginsConfig]:
    from hvd_core._config.plugins_toml import PluginsConfig

    try:
        settings = config()
    except ValueError as error:
        return _of_message("", "plugins.toml", BAD, error), PluginsConfig(())
    files = [f"{file.kind}: {file.path}" for file in settings.files]
    return Step("", "plugins.toml", GOOD, f"site policy: {settings.policy() or 'none'}", files), settings


# ---- one backend ------------------------------------------------------------------------------------------------------


def examine_phases(name: str, settings: PluginsConfig, opening: bool, named: bool) -> list[Step]:
    """The phases of one backend, up to the first that fails. A probe that answers Unavailable is bad only if the backend
    was ``named``: it is no fault of the installation."""
    from hvd_core.backends import _discovery as discovery

    try:
        backend = discovery.lookup(name, _SOURCE, pinned(name, settings))
    except BackendError as error:
        return [_of_message(name, "discover", BAD, error)]
    entry = backend.candidate.entry
    more = [f"entry point {entry}"] if entry else []
    steps = [Step(name, "discover", GOOD, backend.candidate.describe_place(), more)]
    if (veto := settings.vetoed_by(name)) is not None:
        return [*steps, Step(name, "policy", NOTE, f"may not be used here: {veto}")]
    export(settings, name)
    steps += _phases(backend, settings)
    last = steps[-1]
    if last.verdict == BAD:
        if last.phase == PROBE and not last.ended and not named:
            last.verdict = NOTE
        return steps
    steps.append(opened(name) if opening else Step(name, "open", SKIPPED, "skipped by --no-open"))
    return steps


def _phases(backend: InstalledBackend, settings: PluginsConfig) -> list[Step]:
    """The phases describe, probe and load, up to the first that fails."""
    name = backend.name
    if backend.candidate.origin == PATH:
        steps = [
            Step(name, phase, SKIPPED, "a library without a wheel has none") for phase in (DESCRIBE, PROBE)
        ]
        phases: tuple[str, ...] = (LOAD,)
    else:
        steps, phases = [], (DESCRIBE, PROBE, LOAD)
    done = examine(backend, settings, phases, until_unavailable=True)
    if found := done.found.get(DESCRIBE):
        text = f"serves {', '.join(found['devices'])}; has {', '.join(found['provides'])}"
        steps.append(Step(name, DESCRIBE, GOOD, text, [f"requires {one}" for one in found["requires"]]))
    if found := done.found.get(PROBE):
        if not found["available"]:
            fix = [f"fix: {found['fix']}"] if found["fix"] else []
            return [*steps, Step(name, PROBE, BAD, found["reason"], fix)]
        steps.append(Step(name, PROBE, GOOD, found["detail"] or "works on this machine"))
    if found := done.found.get(LOAD):
        return [*steps, _loaded(name, found["facts"])]
    phase = next(phase for phase in phases if phase not in done.found)
    if done.report.fault:
        wheel = backend.candidate.distribution
        more = [f"it wrote: {line}" for line in done.report.output[-_SHOWN_LINES:]]
        more += [f"fix: report it to the author of {wheel}, or pip uninstall {wheel}"] if wheel else []
        return [*steps, Step(name, done.report.phase or phase, BAD, done.report.fault, more, ended=True)]
    step = _of_message(name, phase, BAD, done.error)
    step.more += _diagnosed(backend) if phase == LOAD else []
    return [*steps, step]


def _loaded(name: str, facts: dict[str, Any]) -> Step:
    from hvd_core.backends import _discovery as discovery
    from hvd_core.backends._selection import options as backend_options
    from hvd_core.backends._selection.plan import Usable

    more = [f"vendor library {facts['vendor_lib']}"] if facts["vendor_lib"] else []
    more.append(f"capabilities {', '.join(facts['caps'])}")
    usable = Usable(name, "", options=tuple(facts["options"]))
    try:
        backend_options.check([usable], os.environ, lambda: [c.name for c in discovery.candidates()])
    except ValueError as error:
        return Step(name, LOAD, BAD, str(error).removeprefix("horovod: "), more)
    version = f"{facts['tag']} {facts['version']}, ABI {'.'.join(map(str, facts['abi']))}"
    return Step(name, LOAD, GOOD, version, more)


def _diagnosed(backend: InstalledBackend) -> list[str]:
    """Details about the library, in addition to the loader's message."""
    from hvd_core.backends._discovery.diagnosis import load_diagnosis

    try:
        path = Path(backend.path())
    except BackendError:
        return []
    return [f"library {path}", *load_diagnosis(path)]


def opened(name: str) -> Step:
    """The last phase: opens a communicator of one rank, on the backend's device if it has one, and checks an allreduce. A
    backend without communicators is opened only."""
    from hvd_core._bootstrap.launchers import VARIABLE_PREFIXES

    # With variables of a launcher the process would be a rank of an outer job, and wait for its peers.
    kept = ("HOROVOD_BACKEND_", "HOROVOD_PLUGINS_TOML")
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(VARIABLE_PREFIXES) or name.startswith(kept)
    }
    with tempfile.TemporaryDirectory(prefix="hvd-doctor-") as folder:
        report = Path(folder) / "report.json"
        kit = [sys.executable, "-m", "hvd_core.conformance", name, "-np", "1", "--json", str(report)]
        kit += ["--case", "L1.open", "--case", "L2.allreduce"]
        done = sandbox.run(kit, timeout_s=_OPEN_SECONDS, env=environ, cwd=folder, merge_output=True)
        if done.returncode is None:
            text = f"opening it on one rank takes longer than {_OPEN_SECONDS:g} s"
            return Step(name, "open", BAD, text, ended=True)
        if done.returncode == 0:
            return Step(name, "open", GOOD, "opened on one rank; an allreduce gives the right values")
        last_lines = done.stdout.strip().splitlines()[-_SHOWN_LINES:]
        if done.signal:
            text = f"its process {sandbox.describe_exit(done.returncode)}"
            return Step(name, "open", BAD, text, last_lines, ended=True)
        return Step(name, "open", BAD, "it does not work on one rank", _failures(report) or last_lines)


def _failures(report: Path) -> list[str]:
    """The faults that the kit found; [] if it has written no report."""
    cases = json.loads(report.read_text())["cases"] if report.exists() else []
    return [
        f"{case['case']}: {case['text']}" for case in cases if case["verdict"] == "FAIL" and case.get("text")
    ]


# ---- the verb ---------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="one backend only")
    parser.add_argument("--no-open", action="store_true", help="open no device and run no collective")
    output.add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Examine one backend or all. Returns FINDINGS if a step is bad."""
    from hvd_core.backends import _discovery as discovery

    files, settings = _files()
    steps = [*general(), files]
    every = dict.fromkeys(candidate.name for candidate in discovery.candidates())
    for name in [options.name.lower()] if options.name else every:
        steps += examine_phases(name, settings, opening=not options.no_open, named=options.name is not None)
    bad = [step for step in steps if step.verdict == BAD]
    if options.json:
        output.document([asdict(step) for step in steps])
    else:
        rows = [(s.verdict, s.backend or "(all)", s.phase, "\n".join([s.text, *s.more])) for s in steps]
        output.table(("verdict", "backend", "phase", "result"), rows, _STYLES)
        if bad:
            output.text("", *(f"{s.backend or 'here'}: {s.phase} fails: {s.text}" for s in bad))
    return output.FINDINGS if bad else output.OK
