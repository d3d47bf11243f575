"""The environment of the ranks: the caller's own, the options', and who each rank is.

For the launcher; any thread. The secret travels here and nowhere else: never on a command
line, never in what --verbose prints.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from horovod.runner.config import set_env_from_args
from horovod.runner.hosts import SlotInfo

# An outer job's rank, store and secret must not leak into the ranks of this one, nor what it found installed, nor shell
# functions.
_NOT_PASSED = re.compile(
    r"BASH_FUNC_.*|OLDPWD|_HOROVOD_SECRET_KEY|HOROVOD_RUN_(FUNC|RESULT)_FD|HOROVOD_BACKEND_SPEC"
)

# What belongs to this machine, to the login here, or to its devices means nothing on another host: there the
# host's own values stay. (PWD is the job's folder; who wants a certain HOME or TMPDIR sets it in the command.)
_HERE = re.compile(
    r"HOSTNAME|HOST|PWD|SHLVL|_|HOME|USER|LOGNAME|MAIL|SHELL|TMPDIR|TMP|TEMP|TTY|TMUX.*|STY|DISPLAY|XAUTHORITY"
    r"|WAYLAND_.*|WINDOWID|SSH_.*|XDG_.*|DBUS_.*|.*VISIBLE_DEVICES"
)

SECRET = "HOROVOD_SECRET_KEY"


def job_environment(base: Mapping[str, str], args: argparse.Namespace) -> dict[str, str]:
    """What all ranks have in common: `base` (os.environ) and what the options set.

    Deliberately not set: OMP_NUM_THREADS and CPU binding (the caller's choice), HOROVOD_CPU_OPERATIONS (it
    would choose a backend), HOROVOD_GLOO_IFACE and NCCL_SOCKET_IFNAME unless interfaces were named.
    """
    env = {name: value for name, value in base.items() if _NOT_PASSED.fullmatch(name) is None}
    set_env_from_args(env, args)
    if args.start_timeout is not None:
        env["HOROVOD_START_TIMEOUT"] = str(args.start_timeout)
    if args.tcp_flag:
        env["NCCL_IB_DISABLE"] = "1"
    if args.nics:
        nics = sorted(args.nics)
        env["HOROVOD_GLOO_IFACE"] = nics[0]
        env["NCCL_SOCKET_IFNAME"] = ",".join(nics)
    env["HOROVOD_CONTROLLER"] = "gloo"
    # Progress must be seen when it is made, not when 8 KiB of it have come together.
    env["PYTHONUNBUFFERED"] = "1"
    return env


def remote_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of job_environment() that other hosts get, on top of what the remote shell gives there."""
    return {name: value for name, value in env.items() if _HERE.fullmatch(name) is None}


def store_environment(address: str, secret: bytes) -> dict[str, str]:
    """Where the ranks meet: `address` is "tcp://host:port". Keep the result out of logs."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return {
        "HOROVOD_STORE": address,
        SECRET: secret.hex(),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }


def backend_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Which backends are installed here, so that the ranks need not look: a scan reads a file per installed distribution,
    times the ranks of a job. Nothing when HOROVOD_BACKEND names embedded ones for everything, which need no looking."""
    from hvd_core.backends import discovery
    from hvd_core.backends.discovery.backend_spec import VARIABLE

    rules = [rule for rule in env.get("HOROVOD_BACKEND", "").split(",") if rule.strip()]
    # DEVICE=NAME leaves the other device types to the automatic choice.
    everything = any("=" not in rule for rule in rules)
    found = discovery.launcher_spec(rule.rpartition("=")[2] for rule in rules if everything)
    return {} if found is None else {VARIABLE: found}


def rank_environment(slot: SlotInfo) -> dict[str, str]:
    """Who a rank is."""
    return {
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
    }
