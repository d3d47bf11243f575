"""The tuning options of horovodrun as one table: flag, type, environment variable, key in --config-file.

A value comes from the command line, else from the file; otherwise it stays None, and the caller's environment is not
changed. Pure functions, for the launcher; any thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from horovod._runner import elastic_options

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def cpu_list(text: str | int) -> int | str:
    """One core, or one core per local rank: "3" -> 3, "0,2" -> "0,2". Raises ValueError for anything else."""
    cores = [int(part) for part in str(text).split(",")]
    return cores[0] if len(cores) == 1 else ",".join(map(str, cores))


cpu_list.__name__ = "core or comma-separated cores"


def positive_time(text: str | float) -> float:
    """Seconds, an int where that is exact. Raises ValueError where a rank would too."""
    from hvd_core._config.settings import positive_seconds  # late: the parser needs no engine

    seconds = positive_seconds(str(text), "this time")
    return int(seconds) if seconds.is_integer() else seconds


positive_time.__name__ = "positive number of seconds"


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _inverse(value: bool) -> str:
    return _flag(not value)


def _megabytes(value: int) -> str:
    return str(value * 1024 * 1024)


@dataclass(frozen=True)
class Option:
    """One row.

    `kind` is bool or a conversion; `low`/`high` bound it; `only_with` names the option without which the
    variable is not set; `inverted` means that the key in the file says the opposite of the flag.
    """

    group: str
    dest: str
    flags: tuple[str, ...]
    kind: Callable[[Any], Any]
    env: str
    key: str
    help: str
    off_flags: tuple[str, ...] = ()
    to_text: Callable[[Any], str] = str
    low: float | None = 0
    high: float | None = None
    only_with: str | None = None
    inverted: bool = False
    choices: tuple[str, ...] | None = None


def _switch(group: str, name: str, env: str, key: str, text: str, **more) -> Option:
    dest = name.replace("-", "_")
    return Option(
        group, dest, (f"--{name}",), bool, env, key, text, (f"--no-{name}",), to_text=_flag, low=None, **more
    )


_TUNING, _AUTOTUNE, _TIMELINE = "tuning", "autotuning", "timeline"
_STALL, _LIBRARY, _LOGGING = "stall check", "libraries", "logging"


def _autotune(name: str, kind: Callable, text: str, **more) -> Option:
    dest = "autotune_" + name.replace("-", "_")
    env = "HOROVOD_AUTOTUNE_LOG" if name == "log-file" else "HOROVOD_" + dest.upper()
    key = "autotune." + name.replace("-", "_")
    return Option(
        _AUTOTUNE, dest, (f"--autotune-{name}",), kind, env, key, text, only_with="autotune", **more
    )


# fmt: off
OPTIONS: tuple[Option, ...] = (
    Option(_TUNING, "fusion_threshold_mb", ("--fusion-threshold-mb",), int, "HOROVOD_FUSION_THRESHOLD",
           "params.fusion_threshold_mb", "largest batch of tensors executed as one, in MiB; 0: no batching",
           to_text=_megabytes),
    Option(_TUNING, "cycle_time_ms", ("--cycle-time-ms",), float, "HOROVOD_CYCLE_TIME",
           "params.cycle_time_ms", "coalescing delay of small tensors, in ms"),
    Option(_TUNING, "cache_capacity", ("--cache-capacity",), int, "HOROVOD_CACHE_CAPACITY",
           "params.cache_capacity", "how many tensors the engine remembers; 0: none"),
    _switch(_TUNING, "hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE",
            "params.hierarchical_allreduce", "reduce within hosts first, then between them"),
    _switch(_TUNING, "hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER",
            "params.hierarchical_allgather", "gather within hosts first, then between them"),
    _switch(_TUNING, "torus-allreduce", "HOROVOD_TORUS_ALLREDUCE", "params.torus_allreduce",
            "reduce along local and cross ranks"),
    _switch(_AUTOTUNE, "autotune", "HOROVOD_AUTOTUNE", "autotune.enabled",
            "tune the parameters while running"),
    _autotune("log-file", str, "CSV file for the tried parameters", low=None),
    _autotune("warmup-samples", int, "samples thrown away first (3)"),
    _autotune("steps-per-sample", int, "steps per sample (10)"),
    _autotune("bayes-opt-max-samples", int, "samples at most (20)"),
    _autotune("gaussian-process-noise", float, "noise of the samples, 0 to 1 (0.8)", high=1),
    Option(_TIMELINE, "timeline_filename", ("--timeline-filename",), str, "HOROVOD_TIMELINE",
           "timeline.filename", "write a timeline of all operations to this file", low=None),
    _switch(_TIMELINE, "timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "timeline.mark_cycles",
            "mark cycles in the timeline", only_with="timeline_filename"),
    Option(_STALL, "no_stall_check", ("--no-stall-check",), bool, "HOROVOD_STALL_CHECK_DISABLE",
           "stall_check.enabled", "do not report tensors that only some ranks have submitted", ("--stall-check",),
           to_text=_flag, low=None, inverted=True),
    Option(_STALL, "stall_check_warning_time_seconds", ("--stall-check-warning-time-seconds",), int,
           "HOROVOD_STALL_CHECK_TIME_SECONDS", "stall_check.warning_time_seconds",
           "report after so many seconds (60)"),
    Option(_STALL, "stall_check_shutdown_time_seconds", ("--stall-check-shutdown-time-seconds",), int,
           "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "stall_check.shutdown_time_seconds",
           "end the job after so many seconds; 0: never (0)"),
    _switch(_LIBRARY, "mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE",
            "library_options.mpi_threads_disable", "ask MPI for no thread support"),
    Option(_LIBRARY, "num_nccl_streams", ("--num-nccl-streams",), int, "HOROVOD_NUM_NCCL_STREAMS",
           "library_options.num_nccl_streams", "streams for NCCL (1)"),
    Option(_LIBRARY, "thread_affinity", ("--thread-affinity",), cpu_list, "HOROVOD_THREAD_AFFINITY",
           "library_options.thread_affinity", "core of the engine thread: one per local rank, or a first one"),
    Option(_LIBRARY, "gloo_timeout_seconds", ("--gloo-timeout-seconds",), positive_time,
           "HOROVOD_GLOO_TIMEOUT_SECONDS", "library_options.gloo_timeout_seconds",
           "how long to wait for other processes in rendezvous (30)"),
    Option(_LOGGING, "log_level", ("--log-level",), str, "HOROVOD_LOG_LEVEL", "logging.level",
           "least severity that is logged", low=None, choices=LOG_LEVELS),
    Option(_LOGGING, "log_with_timestamp", ("--log-with-timestamp", "--no-log-hide-timestamp"), bool,
           "HOROVOD_LOG_HIDE_TIME", "logging.with_timestamp", "the time in each line of the log",
           ("--log-without-timestamp", "--log-hide-timestamp"), to_text=_inverse, low=None),
)
# fmt: on


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds every row of the table; defaults are None, which means "not given"."""
    groups: dict[str, Any] = {}
    for option in OPTIONS:
        group = groups.get(option.group) or groups.setdefault(
            option.group, parser.add_argument_group(f"{option.group} (environment variables of the ranks)")
        )
        text = f"{option.help} [{option.env}]"
        if option.kind is bool:
            group.add_argument(*option.flags, dest=option.dest, action="store_const", const=True, help=text)
            group.add_argument(
                *option.off_flags, dest=option.dest, action="store_const", const=False, help="the opposite"
            )
        else:
            kind = str.upper if option.choices else option.kind
            group.add_argument(*option.flags, dest=option.dest, type=kind, choices=option.choices, help=text)


def load_config_file(path: str) -> dict:
    """The YAML file as a dictionary. Raises ValueError if it is not a mapping in YAML, OSError if it cannot be read."""
    import yaml

    with open(path) as text:
        try:
            config = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"The configuration file {path} is not valid YAML: {error}") from None
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise ValueError(
            f"The configuration file {path} must hold sections such as 'params:', found {config!r}."
        )
    return config


def set_args_from_config(args: argparse.Namespace, config: dict) -> list[str]:
    """Sets the options that the command line did not set; returns unknown keys. Raises ValueError for wrong values."""
    known = {option.key for option in OPTIONS} | {"controller", "verbose"}
    unknown = []
    for section, content in config.items():
        if section == elastic_options.SECTION:
            unknown += elastic_options.set_elastic_args(args, content)
            continue
        if any(key.startswith(f"{section}.") for key in known):
            content = {} if content is None else content
            if not isinstance(content, dict):
                raise ValueError(
                    f"{section} in the configuration file must be a section with keys of its own, found {content!r}."
                )
        keys = [f"{section}.{key}" for key in content] if isinstance(content, dict) else [str(section)]
        unknown += [key for key in keys if key not in known]
    for option in OPTIONS:
        section, _, key = option.key.partition(".")
        content = config.get(section)
        if not isinstance(content, dict) or getattr(args, option.dest) is not None:
            continue
        value = content.get(key)
        if value is None and key == "enabled":
            # Without the key, the stall check is on and autotuning is off.
            value = section == "stall_check"
        if value is not None:
            setattr(args, option.dest, _convert(option, value))
    if config.get("verbose") is not None and args.verbose is None:
        args.verbose = bool(config["verbose"])
    controller = config.get("controller")
    if controller is not None:
        chosen = str(controller).lower()
        if chosen not in ("gloo", "mpi", "jsrun"):
            raise ValueError(f"No such controller supported: {controller}")
        if not (args.use_gloo or args.use_mpi or args.use_jsrun):
            setattr(args, f"use_{chosen}", True)
    return unknown


def _convert(option: Option, value: Any) -> Any:
    if option.kind is bool:
        if not isinstance(value, bool):
            raise ValueError(
                f"{option.key} in the configuration file must be true or false, found {value!r}."
            )
        return value is not option.inverted
    wrong = isinstance(value, (bool, dict, list)) or (option.kind is int and isinstance(value, float))
    try:
        converted = None if wrong else option.kind(value)
    except ValueError:
        converted = None
    if converted is None:
        wanted = {int: "an integer", float: "a number"}.get(option.kind, f"a {option.kind.__name__}")
        raise ValueError(f"{option.key} in the configuration file must be {wanted}, found {value!r}.")
    if option.choices:
        converted = converted.upper()
        if converted not in option.choices:
            raise ValueError(
                f"{option.key} in the configuration file must be one of {', '.join(option.choices)}, "
                f"found {value!r}."
            )
    return converted


def validate_config_args(args: argparse.Namespace) -> None:
    """Raises ValueError for values out of range."""
    for option in OPTIONS:
        value = getattr(args, option.dest)
        if value is None or option.low is None:
            continue
        for number in str(value).split(",") if option.kind is cpu_list else [value]:
            if option.high is not None and not option.low <= float(number) <= option.high:
                raise ValueError(f"{option.dest}={value} must be in [{option.low}, {option.high}]")
            if not float(number) >= option.low:
                raise ValueError(f"{option.dest}={value} must be >= {option.low}")


def options_without_effect(args: argparse.Namespace) -> list[str]:
    """Each given option that does nothing, with the reason: "--a without --b has no effect"."""
    found = ["--disable-cache has no effect: nothing is cached"] if args.disable_cache else []
    return found + [
        f"{option.flags[0]} without --{option.only_with.replace('_', '-')} has no effect"
        for option in OPTIONS
        if option.only_with
        and getattr(args, option.dest) not in (None, False)
        and not getattr(args, option.only_with)
    ]


def set_env_from_args(env: MutableMapping[str, str], args: argparse.Namespace) -> MutableMapping[str, str]:
    """Sets the variables of all options that have a value; returns `env`."""
    for option in OPTIONS:
        value = getattr(args, option.dest)
        if value is None or (option.only_with and not getattr(args, option.only_with)):
            continue
        env[option.env] = option.to_text(value)
    return env
