"""``hvd doctor --bundle OUT.tar.gz``: packs what a bug report needs into one file, and says what it packed.

It asks nothing of the network, and removes secrets (``redaction``). The command runs in the environment of the job, on
one of its hosts.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from hvd_core._base import sandbox
from hvd_core._cli import codes, output
from hvd_core._cli.host_facts import host_facts
from hvd_core._cli.redaction import Redaction

# Variables that say how a job is started and how its libraries behave. Those of the backends begin with their names.
_BEGINNINGS = (
    "HOROVOD_", "HVD_", "OMPI_", "OPAL_", "PRTE_", "PMIX_", "PMI_", "MPICH_", "I_MPI_", "HYDRA_", "SLURM_", "FI_", "OMP_",
    "LD_", "PYTHON", "MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "LANG", "LC_",
)  # fmt: skip
_ENDINGS = ("_VISIBLE_DEVICES",)
_MOST_LOG_BYTES = 1 << 20
_MOST_FLIGHT_BYTES = 64 << 20
_MOST_JOBS = 4
_COMMAND_SECONDS = 60.0

_BACKENDS = ["plugin", "doctor", "--no-open", "--json"]
_CONFIGURATION = ["config", "--json"]


def run(options: argparse.Namespace) -> int:
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
        return codes.OK
    output.table(("file", "bytes", "what it is"), [(n, str(size), meaning) for n, size, meaning in rows])
    output.text(
        "",
        f"{path}: {path.stat().st_size} bytes. {redaction.removed} secrets were removed, by the names of variables and "
        "by their values. Look through the files before you send them: names of hosts, users and tensors are in them.",
    )
    return codes.OK


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

    yield "versions.json", "versions of Python and of the installed distributions", packed(versions)
    yield (
        "environment.json",
        "variables of jobs, launchers and backends",
        packed(lambda: variables(redaction)),
    )
    yield "host.json", "cores, memory, limits, shared memory, interfaces", packed(host_facts)
    yield "backends.json", "hvd plugin doctor --no-open", packed(lambda: _own_command(_BACKENDS, redaction))
    yield (
        "configuration.json",
        "hvd config --explain",
        packed(lambda: _own_command(_CONFIGURATION, redaction)),
    )
    yield from _flight(redaction)
    if job is not None:
        asked = ["doctor", "--job", *([str(job)] if job else []), "--json"]
        yield (
            "job.json",
            "hvd doctor --job: the answers of a running job",
            packed(lambda: _own_command(asked, redaction)),
        )
    for name in logs:
        yield (
            f"logs/{name.strip('/').replace('/', '_')}",
            f"the end of {name}",
            packed(lambda n=name: _end_of(n)),
        )


def _flight(redaction: Redaction) -> Iterator[tuple[str, str, bytes]]:
    """The flight recorders that the last failed jobs have left on this host, as they are and as text."""
    from hvd_core._observe import flight_records
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
    from hvd_core.backends import discovery

    beginnings = (*_BEGINNINGS, *(f"{candidate.name.upper()}_" for candidate in discovery.candidates()))
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
    """The document that `hvd` prints for these arguments, and what else it says. In a process of its own, since it loads
    the backends' libraries."""
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
