"""``hvd doctor --bundle OUT.tar.gz``: packs what a bug report needs into one file, and says what it packed.

It does not use the network, and removes secrets. The command runs in the environment of the job, on
one of its hosts.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
import resource
import socket
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from hvd_core._base import sandbox
from hvd_core._bootstrap.launchers import VARIABLE_PREFIXES
from hvd_core._cli import output

# ---- secrets are found by the names of variables, and by their values wherever these occur ----------------------------

REMOVED = "(removed)"

_SECRET_NAME = re.compile(
    r"SECRET|PASSW|PASSPHRASE|TOKEN|CREDENTIAL|COOKIE|PRIVATE|AUTH|PSK|API_?KEY|ACCESS_?KEY|(^|_)KEY($|_)|(^|_)PASS($|_)",
    re.IGNORECASE,
)
# user:password@ of a URL, and long words that are made by a generator of keys.
_IN_URL = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+(?=@)")
_KEY_LIKE = re.compile(
    r"\b[0-9a-fA-F]{32,}\b|\b(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9+_-]{40,}={0,2}"
)
_SHORTEST = 6  # shorter values would remove ordinary words


def is_secret_name(name: str) -> bool:
    """Whether the name of a variable says that its value is a secret."""
    return _SECRET_NAME.search(name) is not None


class Redaction:
    """Removes the secrets of one environment.

    Args:
        environ: all variables, also those that are not reported: their secrets may occur in logs.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {
            value for name, value in environ.items() if is_secret_name(name) and len(value) >= _SHORTEST
        }
        self._secrets = {os.fsencode(value) for value in values}
        # Logs hold values as Python and JSON write them, too.
        for value in list(values):
            values |= {
                repr(value)[1:-1],
                json.dumps(value)[1:-1],
                json.dumps(value, ensure_ascii=False)[1:-1],
            }
        # A longer secret may contain a shorter one.
        self._known = sorted(values, key=len, reverse=True)
        self.removed = 0

    def text(self, text: str) -> str:
        """``text`` without the values of secret variables, and without passwords in URLs."""
        for value in self._known:
            self.removed += text.count(value)
            text = text.replace(value, REMOVED)
        text, found = _IN_URL.subn(REMOVED, text)
        self.removed += found
        return text

    def document(self, value: Any) -> Any:
        """``value``, which is to become JSON, without secrets in its texts. Before it is written: JSON spells quotes,
        backslashes and most letters otherwise."""
        if isinstance(value, dict):
            return {self.text(str(key)): self.document(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.document(one) for one in value]
        return value if isinstance(value, (int, float, type(None))) else self.text(str(value))

    def data(self, data: bytes) -> bytes:
        """``data`` with the values of secret variables overwritten, in the same length."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            self.removed += data.count(secret)
            data = data.replace(secret, b"*" * len(secret))
        return data

    def variable(self, name: str, value: str) -> str:
        """The value of a variable as it may be shown. Values that look like generated keys are removed too."""
        if is_secret_name(name):
            self.removed += 1
            return REMOVED
        value, found = _KEY_LIKE.subn(REMOVED, value)
        self.removed += found
        return self.text(value)


# ---- facts about this host that matter to a job -----------------------------------------------------------------------

_LIMITS = ("NOFILE", "NPROC", "MEMLOCK", "AS", "STACK", "CORE", "FSIZE")
_GROUP_FILES = (
    "cpu.max",
    "memory.max",
    "memory.current",
    "pids.max",
    "pids.current",
    "cpuset.cpus.effective",
)
_SYSTEM_FILES = ("/etc/os-release", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/yama/ptrace_scope")


def host_facts() -> dict[str, Any]:
    """Cores, memory, limits, shared memory, network interfaces, kernel; sizes in bytes. Facts that are not available are
    left out."""
    import psutil

    addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": {"online": os.cpu_count(), "of this process": sorted(os.sched_getaffinity(0))},
        "load": os.getloadavg(),
        "memory": psutil.virtual_memory()._asdict(),
        "swap": psutil.swap_memory()._asdict(),
        "control group": _control_group(),
        "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS},
        "file systems": {
            path: psutil.disk_usage(path)._asdict() for path in ("/dev/shm", "/tmp", os.getcwd())
        },
        "interfaces": {
            name: state._asdict() | {"addresses": [address.address for address in addresses.get(name, ())]}
            for name, state in states.items()
        },
        "files": {path: text for path in _SYSTEM_FILES if (text := _read(path))},
    }


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _control_group() -> dict[str, str]:
    """The limits of this process's control group (version 2)."""
    own = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    folder = Path("/sys/fs/cgroup") / own.lstrip("/")
    if not folder.is_dir():  # in a container the path is the host's
        folder = Path("/sys/fs/cgroup")
    return {name: text for name in _GROUP_FILES if (text := _read(folder / name))}


# Variables that say how a job is started and how its libraries behave. Those of the backends begin with their names.
_BEGINNINGS = (
    *VARIABLE_PREFIXES, "HVD_", "OPAL_", "PRTE_", "MPICH_", "I_MPI_", "HYDRA_", "FI_", "OMP_",
    "LD_", "PYTHON", "MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "LANG", "LC_",
)  # fmt: skip
_ENDINGS = ("_VISIBLE_DEVICES",)
_MOST_LOG_BYTES = 1 << 20
_MOST_FLIGHT_BYTES = 64 << 20
_MOST_JOBS = 4
_COMMAND_SECONDS = 60.0

_BACKENDS = ["plugin", "doctor", "--no-open", "--json"]
_CONFIGURATION = ["config", "--json"]


def pack(options: argparse.Namespace) -> int:
    """Write the bundle and list its parts. Raises ValueError if the file exists, OSError if it cannot be written."""
    path = Path(options.bundle)
    if path.exists():
        raise ValueError(f"{path} exists already: name another file")
    redaction = Redaction(os.environ)
    rows = []
    # Not readable for others, from the beginning.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                for name, meaning, data in _parts(redaction, options.log or [], options.job):
                    _add(archive, f"{path.name.split('.')[0]}/{name}", data)
                    rows.append((name, len(data), meaning))
        except BaseException:
            path.unlink()
            raise
    if options.json:
        parts = [{"file": n, "bytes": size, "meaning": meaning} for n, size, meaning in rows]
        output.document({"bundle": str(path), "parts": parts, "secrets removed": redaction.removed})
        return output.OK
    output.table(("file", "bytes", "what it is"), [(n, str(size), meaning) for n, size, meaning in rows])
    output.text(
        "",
        f"{path}: {path.stat().st_size} bytes. {redaction.removed} secrets were removed, by the names of variables and "
        "by their values. Look through the files before you send them: names of hosts, users and tensors are in them.",
    )
    return output.OK


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
    archive.addfile(entry, io.BytesIO(data))


def _parts(redaction: Redaction, logs: list[str], job: int | None) -> Iterator[tuple[str, str, bytes]]:
    """(file in the bundle, its meaning, its bytes) of each part. ``job``: the argument of --job."""

    def packed(make: Callable[[], Any]) -> bytes:
        try:
            made = make()
        except Exception as error:  # of a part that cannot be had: the others still help
            made = f"this part could not be made: {type(error).__name__}: {error}\n"
        text = made if isinstance(made, str) else json.dumps(redaction.document(made), indent=2) + "\n"
        return redaction.text(text).encode("utf-8", "backslashreplace")

    job_arguments = ["doctor", "--job", *([str(job)] if job else []), "--json"]
    parts: list[tuple[str, str, Callable[[], Any]]] = [
        ("versions.json", "versions of Python and of the installed distributions", versions),
        ("environment.json", "variables of jobs, launchers and backends", lambda: variables(redaction)),
        ("host.json", "cores, memory, limits, shared memory, interfaces", host_facts),
        ("backends.json", "hvd plugin doctor --no-open", lambda: _own_command(_BACKENDS, redaction)),
        ("configuration.json", "hvd config --explain", lambda: _own_command(_CONFIGURATION, redaction)),
    ]
    if job is not None:
        meaning = "hvd doctor --job: the answers of a running job"
        parts.append(("job.json", meaning, lambda: _own_command(job_arguments, redaction)))
    for name in logs:
        file = f"logs/{name.strip('/').replace('/', '_')}"
        parts.append((file, f"the end of {name}", partial(_end_of, name)))
    for name, meaning, make in parts:
        yield name, meaning, packed(make)
    yield from _flight(redaction)


def _flight(redaction: Redaction) -> Iterator[tuple[str, str, bytes]]:
    """The flight recorders that the last failed jobs have left on this host, as they are and as text."""
    from hvd_core import flight_records
    from hvd_core._observe.settings import flight_folder

    room = _MOST_FLIGHT_BYTES
    for job in flight_records.jobs(flight_folder())[:_MOST_JOBS]:
        for path in sorted(job.glob(f"*{flight_records.SUFFIX}")):
            try:
                flight_records.writer_of(path)  # a file of another kind does not belong in the bundle
                data = path.read_bytes()
                lines = [flight_records.describe(event) for event in flight_records.read_ring(data).events]
            except OSError:  # another user's, or gone meanwhile
                continue
            except ValueError as error:
                data, lines = b"", [str(error)]
            room -= len(data)
            if room < 0:
                return
            place = f"flight/{job.name}/{path.stem}"
            if data:
                yield (
                    f"{place}{flight_records.SUFFIX}",
                    "a flight recorder, for hvd flight",
                    redaction.data(data),
                )
            text = redaction.text("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
            yield f"{place}.txt", f"its events: rank {path.stem.removeprefix('rank-')}", text


def variables(redaction: Redaction) -> dict[str, str]:
    """The variables that matter, without secrets."""
    from hvd_core.backends import _discovery

    beginnings = (*_BEGINNINGS, *(f"{candidate.name.upper()}_" for candidate in _discovery.candidates()))
    return {
        name: redaction.variable(name, value)
        for name, value in sorted(os.environ.items())
        if name.startswith(beginnings) or name.endswith(_ENDINGS)
    }


def versions() -> dict[str, Any]:
    """Versions of Python and of the installed distributions; nothing is imported."""
    from hvd_core.version import __version__

    found = {}
    for distribution in metadata.distributions():
        with suppress(Exception):  # of a damaged distribution
            found[distribution.metadata["Name"]] = distribution.version
    return {
        "hvd-core": __version__,
        "python": sys.version,
        "executable": sys.executable,
        "prefix": sys.prefix,
        "libc": " ".join(platform.libc_ver()),
        "distributions": dict(sorted(found.items(), key=lambda item: item[0].lower())),
    }


def _own_command(arguments: list[str], redaction: Redaction) -> str:
    """The document that `hvd` prints for these arguments, and what else it says. In a sandbox, since it loads the
    backends' libraries."""
    argv = [sys.executable, "-m", "hvd_core._cli", *arguments]
    done = sandbox.run(argv, timeout_s=_COMMAND_SECONDS, encoding_errors="surrogateescape")
    if done.timed_out:
        raise TimeoutError(f"hvd {' '.join(arguments)} timed out after {_COMMAND_SECONDS:g} s")
    shown = done.stdout
    with suppress(ValueError):  # no document, but words
        shown = json.dumps(redaction.document(json.loads(shown)), indent=2) + "\n"
    return shown + (f"\nexit code {done.returncode}\n{done.stderr}" if done.returncode or done.stderr else "")


def _end_of(name: str) -> str:
    with open(name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _MOST_LOG_BYTES))
        data = file.read(_MOST_LOG_BYTES)
    return data.decode("utf-8", "surrogateescape")
