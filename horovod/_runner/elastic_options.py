"""The options of elastic jobs: their check, their keys in --config-file, and what follows from them. Pure functions."""

from __future__ import annotations

import argparse
from typing import Any

from horovod._runner.elastic_discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod._runner.hosts import parse_host_files, parse_hosts, slots_by_host

SECTION = "elastic"
# Key in the section `elastic` of the configuration file -> (attribute of the arguments, its kind).
KEYS: dict[str, tuple[str, type]] = {
    "min_np": ("min_num_proc", int),
    "max_np": ("max_num_proc", int),
    "host_discovery_script": ("host_discovery_script", str),
    "slots_per_host": ("slots", int),
    "elastic_timeout": ("elastic_timeout", int),
    "reset_limit": ("reset_limit", int),
    "blacklist_cooldown_range": ("cooldown_range", list),
    "spares": ("spares", int),
    "preemption_grace": ("preemption_grace", int),
}


def set_elastic_args(args: argparse.Namespace, section: Any) -> list[str]:
    """Sets the options of elastic jobs that the command line did not set; returns unknown keys. `section`: the section
    `elastic` of the configuration file. Raises ValueError for wrong values."""
    if not isinstance(section, dict):
        return [SECTION]
    for key, value in section.items():
        if key not in KEYS or value is None:
            continue
        dest, kind = KEYS[key]
        if not _is(value, kind):
            wanted = {int: "an integer", str: "a text", list: "a list of two integers"}[kind]
            raise ValueError(f"{SECTION}.{key} in the configuration file must be {wanted}, found {value!r}.")
        # Hosts of the command line come before a script of the file.
        hidden = dest == "host_discovery_script" and (args.hosts or args.hostfile)
        if getattr(args, dest) is None and not hidden:
            setattr(args, dest, value)
    return [f"{SECTION}.{key}" for key in section if key not in KEYS]


def _is(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and len(value) == 2 and all(_is(one, int) for one in value)
    return isinstance(value, kind) and not isinstance(value, bool)


def is_elastic(args: argparse.Namespace) -> bool:
    """Whether the arguments ask for an elastic job."""
    return args.min_num_proc is not None or args.host_discovery_script is not None


def check_elastic(args: argparse.Namespace) -> None:
    """Raises ValueError for options of elastic jobs that make no sense."""
    if not is_elastic(args):
        for dest, option in (
            ("max_num_proc", "--max-np"),
            ("slots", "--slots-per-host"),
            ("elastic_timeout", "--elastic-timeout"),
            ("reset_limit", "--reset-limit"),
            ("cooldown_range", "--blacklist-cooldown-range"),
            ("spares", "--spares"),
            ("preemption_grace", "--preemption-grace"),
            ("elastic_chaos", "--elastic-chaos"),
        ):
            if getattr(args, dest, None) is not None:
                raise ValueError(f"{option} is for elastic jobs. Add --min-np or --host-discovery-script.")
        return
    if args.use_mpi or args.use_jsrun:
        raise ValueError(
            "--mpi cannot start an elastic job: MPI ends all processes when one dies. Leave it out; horovodrun starts "
            "the processes itself."
        )
    first, least, most = numbers(args)
    if least < 1:
        raise ValueError(f"--min-np must be at least 1, found {least}.")
    if first < least:
        raise ValueError(
            f"-np {first} is less than --min-np {least}: a job cannot begin with fewer processes."
        )
    if most is not None and most < first:
        raise ValueError(f"--max-np {most} is less than -np {first}: a job cannot begin with more processes.")
    for name, value, low in (
        ("--slots-per-host", args.slots, 1),
        ("--elastic-timeout", args.elastic_timeout, 1),
        ("--reset-limit", args.reset_limit, 0),
        ("--spares", args.spares, 0),
        ("--preemption-grace", args.preemption_grace, 1),
        ("--elastic-chaos", args.elastic_chaos, 0.01),
    ):
        if value is not None and not low <= value < float("inf"):
            raise ValueError(f"{name} must be at least {low}, found {value}.")
    if args.spares and most is None:
        raise ValueError(
            "--spares needs --max-np: without it all slots are used, and none is left for a spare process."
        )
    if args.cooldown_range is not None:
        given = args.cooldown_range
        try:
            low, high = given
            valid = 1 <= low < high <= 3600
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise ValueError(
                "--blacklist-cooldown-range takes two numbers of seconds, 1 <= MIN < MAX <= 3600, found "
                f"{' '.join(map(str, given)) if isinstance(given, (list, tuple)) else repr(given)}."
            )


def numbers(args: argparse.Namespace) -> tuple[int, int, int | None]:
    """(the slots with which the job begins, the fewest and the most ranks)"""
    first = args.num_proc if args.num_proc is not None else args.min_num_proc
    least = args.min_num_proc if args.min_num_proc is not None else first
    return first, least, args.max_num_proc


def hosts_of(args: argparse.Namespace) -> HostDiscovery:
    """Where the hosts of the job come from. Raises ValueError, OSError."""
    if args.host_discovery_script is not None:
        return HostDiscoveryScript(args.host_discovery_script, args.slots)
    first, _, most = numbers(args)
    text = parse_host_files(args.hostfile) if args.hostfile else args.hosts or f"localhost:{most or first}"
    return FixedHosts(slots_by_host(parse_hosts(text)))
