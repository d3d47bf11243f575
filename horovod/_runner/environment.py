"""The environment of the ranks: the caller's variables, those of the options, and each rank's place in the job.

For the launcher; any thread. The secret is passed only here: never on a command line, never in the output of --verbose.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping

from horovod._runner.hosts import SlotInfo

# An outer job's secret, function and list of backends must not reach the ranks of this job, nor shell functions.
_NOT_PASSED = re.compile(
    r"BASH_FUNC_.*|OLDPWD|_HOROVOD_SECRET_KEY|HOROVOD_RUN_(FUNC|RESULT)_FD|HOROVOD_BACKEND_SPEC|HOROVOD_LAST_CALL"
)

# Variables that describe this machine, this login or its devices are not passed to other hosts, which keep their own
# values. (PWD is the job's folder. A user who needs another HOME or TMPDIR can set it in the command.)
_HERE = re.compile(
    r"HOSTNAME|HOST|PWD|SHLVL|_|HOME|USER|LOGNAME|MAIL|SHELL|TMPDIR|TMP|TEMP|TTY|TMUX.*|STY|DISPLAY|XAUTHORITY"
    r"|WAYLAND_.*|WINDOWID|SSH_.*|XDG_.*|DBUS_.*|.*VISIBLE_DEVICES"
)

SECRET = "HOROVOD_SECRET_KEY"
# Seconds between the SIGTERM of a rank of an elastic job and its end (supervisor.py,
# hvd_core/_bootstrap/driver_channel.py).
GRACE = "HOROVOD_PREEMPTION_GRACE"


def job_environment(base: Mapping[str, str], options: Mapping[str, str] = {}) -> dict[str, str]:
    """The variables of all ranks: `base` (os.environ), and those that the options set."""
    env = {name: value for name, value in base.items() if _NOT_PASSED.fullmatch(name) is None}
    env |= options
    env["HOROVOD_CONTROLLER"] = "gloo"
    # Output must appear immediately, not when a buffer of 8 KiB is full.
    env["PYTHONUNBUFFERED"] = "1"
    return env


def remote_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of job_environment() that other hosts get, in addition to the remote shell's environment there."""
    return {name: value for name, value in env.items() if _HERE.fullmatch(name) is None}


def store_environment(address: str, secret: bytes) -> dict[str, str]:
    """The store's variables; `address` is "tcp://host:port". The result holds the secret: keep it out of logs."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return {
        "HOROVOD_STORE": address,
        SECRET: secret.hex(),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }


def backend_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The list of installed backends, so that the ranks need not search: a search reads a file per installed
    distribution, on every rank. Empty if HOROVOD_BACKEND names embedded backends for everything, which need no
    search."""
    from hvd_core.backends import _discovery
    from hvd_core.backends._discovery.entry_points import VARIABLE

    rules = [rule for rule in env.get("HOROVOD_BACKEND", "").split(",") if rule.strip()]
    # DEVICE=NAME leaves the other device types to the automatic choice.
    everything = any("=" not in rule for rule in rules)
    found = _discovery.launcher_spec(rule.rpartition("=")[2] for rule in rules if everything)
    return {} if found is None else {VARIABLE: found}


def rank_environment(slot: SlotInfo) -> dict[str, str]:
    """The variables with a rank's place in the job."""
    return {
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
    }


def python_path() -> str:
    """The import path of this process, as PYTHONPATH for processes of the same Python."""
    return os.pathsep.join(os.path.abspath(place) for place in sys.path)


def is_this_python(python: str) -> bool:
    """Whether a command is the Python of this process. Another one must not get python_path(): it may have another
    version, and has packages of its own."""
    found = shutil.which(python)
    if found is None or not sys.executable:
        return False
    # Not the programs alone: the environments of one Python share it.
    folders = {os.path.dirname(os.path.abspath(path)) for path in (found, sys.executable)}
    return len(folders) == 1 and os.path.samefile(found, sys.executable)
