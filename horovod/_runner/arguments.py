"""The options of horovodrun: its parser, its configuration file, and the checks of single options.

Options with values are rows of tables: flag, type, environment variable, key in --config-file. A value comes from
the command line, else from the file; otherwise it stays None, and the caller's environment is not changed.
launch_spec.py makes a job of the options. Pure functions; any thread.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

INTRODUCTION = """\
horovodrun starts a command once per process of a job.

  horovodrun -np 2 python train.py                          two processes on this machine
  horovodrun -np 4 -H h1:2,h2:2 python train.py             two each on two hosts, over ssh
  horovodrun -np 4 --hostfile hosts python train.py         the same; lines of the file: h1 slots=2
  horovodrun --min-np 2 --host-discovery-script hosts.sh python train.py
                                                            elastic: the number of processes changes
  horovodrun --check-build                                  what is installed here
  horovodrun --help                                         all options
"""


def lsf_hosts(environ: Mapping[str, str]) -> str | None:
    """The hosts of a job of LSF as -H takes them, from LSB_MCPU_HOSTS ("h1 2 h2 2"); None outside of LSF."""
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    if "LSB_JOBID" not in environ or not words or len(words) % 2 or not all(map(str.isdecimal, words[1::2])):
        return None
    return ",".join(f"{host}:{slots}" for host, slots in zip(words[::2], words[1::2], strict=True))


def check_supported(args: argparse.Namespace) -> None:
    """Raises NotImplementedError that names the option if this version does not support it."""
    if args.use_jsrun:
        hosts = lsf_hosts(os.environ)
        where = f"-H {hosts} " if hosts else ""
        raise NotImplementedError(
            "--jsrun is not supported: there was no LSF to write and try it on. "
            f"Start with horovodrun {where}if ssh works between the hosts, or with the mpirun of the job (--mpi)."
        )


def no_number(environ: Mapping[str, str]) -> str:
    """The complaint about a missing -np."""
    text, hosts = "argument -np/--num-proc is required", lsf_hosts(environ)
    if hosts is None:
        return text
    slots = sum(int(part.rpartition(":")[2]) for part in hosts.split(","))
    return f"{text}; all slots of this job of LSF: -np {slots} -H {hosts}"


# ---------------------------------------------------------------------------------------------- elastic jobs


def is_elastic(args: argparse.Namespace) -> bool:
    """Whether the arguments ask for an elastic job."""
    return args.min_num_proc is not None or args.host_discovery_script is not None


def check_elastic(args: argparse.Namespace) -> None:
    """Raises ValueError for options of elastic jobs that make no sense."""
    if not is_elastic(args):
        for option in ELASTIC:
            if getattr(args, option.dest) is not None:
                raise ValueError(
                    f"{option.flags[0]} is for elastic jobs. Add --min-np or --host-discovery-script."
                )
        return
    if args.use_mpi or args.use_jsrun:
        raise ValueError(
            "--mpi cannot start an elastic job: MPI ends all processes when one dies. Leave it out; horovodrun starts "
            "the processes itself."
        )
    first, least, most = numbers(args)
    if first < least:
        raise ValueError(
            f"-np {first} is less than --min-np {least}: a job cannot begin with fewer processes."
        )
    if most is not None and most < first:
        raise ValueError(f"--max-np {most} is less than -np {first}: a job cannot begin with more processes.")
    if args.spares and most is None:
        raise ValueError(
            "--spares needs --max-np: without it all slots are used, and none is left for a spare process."
        )
    if args.cooldown_range is not None:
        try:
            low, high = args.cooldown_range
            valid = 1 <= low < high <= 3600
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise ValueError(
                "--blacklist-cooldown-range takes two numbers of seconds, 1 <= MIN < MAX <= 3600, found "
                f"{args.cooldown_range}."
            )


def numbers(args: argparse.Namespace) -> tuple[int, int, int | None]:
    """(the number of ranks with which a job begins, the fewest and the most). Raises ValueError if none was given."""
    first = args.num_proc if args.num_proc is not None else args.min_num_proc
    if first is None:
        raise ValueError(no_number(os.environ))
    least = args.min_num_proc if args.min_num_proc is not None else first
    return first, least, args.max_num_proc


# -------------------------------------------------------------------------------------------- tuning options

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

    `env`: the variable that it sets on the ranks; "" for none. `kind` is bool or a conversion; `low`/`high` bound it;
    `nargs`: it takes so many values; `only_with` names the option without which the variable is not set; `inverted` means
    that the key in the file says the opposite of the flag.
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
    nargs: int | None = None
    metavar: str | tuple[str, str] | None = None


def _value(
    group: str, name: str, kind: Callable[[Any], Any], env: str, key: str, text: str, **more: Any
) -> Option:
    return Option(group, name.replace("-", "_"), (f"--{name}",), kind, env, key, text, **more)


def _switch(group: str, name: str, env: str, key: str, text: str, **more: Any) -> Option:
    off = (f"--no-{name}",)
    return _value(group, name, bool, env, key, text, off_flags=off, to_text=_flag, low=None, **more)


_TUNING, _AUTOTUNE, _TIMELINE = "tuning", "autotuning", "timeline"
_HOSTS, _ELASTIC = "hosts", "elastic jobs, whose number of processes changes"
_STALL, _LIBRARY, _LOGGING = "stall check", "libraries", "logging"


def _autotune(name: str, kind: Callable[[Any], Any], text: str, **more: Any) -> Option:
    key = name.replace("-", "_")
    env = f"HOROVOD_AUTOTUNE_{key.upper()}".removesuffix("_FILE")
    more["only_with"] = "autotune"
    return _value(_AUTOTUNE, f"autotune-{name}", kind, env, f"autotune.{key}", text, **more)


# fmt: off
OPTIONS: tuple[Option, ...] = (
    _value(_TUNING, "fusion-threshold-mb", int, "HOROVOD_FUSION_THRESHOLD", "params.fusion_threshold_mb",
           "largest batch of tensors executed as one, in MiB; 0: no batching", to_text=_megabytes),
    _value(_TUNING, "cycle-time-ms", float, "HOROVOD_CYCLE_TIME", "params.cycle_time_ms",
           "coalescing delay of small tensors, in ms"),
    _value(_TUNING, "cache-capacity", int, "HOROVOD_CACHE_CAPACITY", "params.cache_capacity",
           "how many tensors the engine remembers; 0: none"),
    _switch(_TUNING, "hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE",
            "params.hierarchical_allreduce", "reduce within hosts first, then between them"),
    _switch(_TUNING, "hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER",
            "params.hierarchical_allgather", "gather within hosts first, then between them"),
    _switch(_TUNING, "torus-allreduce", "HOROVOD_TORUS_ALLREDUCE", "params.torus_allreduce",
            "reduce along local and cross ranks"),
    _switch(_AUTOTUNE, "autotune", "HOROVOD_AUTOTUNE", "autotune.enabled", "tune the parameters while running"),
    _autotune("log-file", str, "CSV file for the tried parameters", low=None),
    _autotune("warmup-samples", int, "samples thrown away first (3)"),
    _autotune("steps-per-sample", int, "steps per sample (10)"),
    _autotune("bayes-opt-max-samples", int, "samples at most (20)"),
    _autotune("gaussian-process-noise", float, "noise of the samples, 0 to 1 (0.8)", high=1),
    _value(_TIMELINE, "timeline-filename", str, "HOROVOD_TIMELINE", "timeline.filename",
           "write a timeline of all operations to this file", low=None),
    _switch(_TIMELINE, "timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "timeline.mark_cycles",
            "mark cycles in the timeline", only_with="timeline_filename"),
    _value(_STALL, "no-stall-check", bool, "HOROVOD_STALL_CHECK_DISABLE", "stall_check.enabled",
           "do not report tensors that only some ranks have submitted", off_flags=("--stall-check",),
           to_text=_flag, low=None, inverted=True),
    _value(_STALL, "stall-check-warning-time-seconds", int, "HOROVOD_STALL_CHECK_TIME_SECONDS",
           "stall_check.warning_time_seconds", "report after so many seconds (60)"),
    _value(_STALL, "stall-check-shutdown-time-seconds", int, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
           "stall_check.shutdown_time_seconds", "end the job after so many seconds; 0: never (0)"),
    _switch(_LIBRARY, "mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE",
            "library_options.mpi_threads_disable", "ask MPI for no thread support"),
    _value(_LIBRARY, "num-nccl-streams", int, "HOROVOD_NUM_NCCL_STREAMS", "library_options.num_nccl_streams",
           "streams for NCCL (1)"),
    _value(_LIBRARY, "thread-affinity", cpu_list, "HOROVOD_THREAD_AFFINITY", "library_options.thread_affinity",
           "core of the engine thread: one per local rank, or a first one"),
    _value(_LIBRARY, "gloo-timeout-seconds", positive_time, "HOROVOD_GLOO_TIMEOUT_SECONDS",
           "library_options.gloo_timeout_seconds", "how long to wait for other processes in rendezvous (30)"),
    _value(_LOGGING, "log-level", str, "HOROVOD_LOG_LEVEL", "logging.level",
           "least severity that is logged", low=None, choices=LOG_LEVELS),
    Option(_LOGGING, "log_with_timestamp", ("--log-with-timestamp", "--no-log-hide-timestamp"), bool,
           "HOROVOD_LOG_HIDE_TIME", "logging.with_timestamp", "the time in each line of the log",
           ("--log-without-timestamp", "--log-hide-timestamp"), to_text=_inverse, low=None),
)
ELASTIC: tuple[Option, ...] = (
    Option(_ELASTIC, "max_num_proc", ("--max-np", "--max-num-proc"), int, "", "elastic.max_np",
           "most processes of an elastic job (default: as many as there are slots)", low=1),
    Option(_ELASTIC, "slots", ("--slots-per-host",), int, "", "elastic.slots_per_host",
           "slots of a host for which the discovery script prints no number", low=1, metavar="N"),
    _value(_ELASTIC, "elastic-timeout", int, "", "elastic.elastic_timeout",
           "seconds to wait for enough slots (600) [HOROVOD_ELASTIC_TIMEOUT]", low=1, metavar="SECONDS"),
    _value(_ELASTIC, "reset-limit", int, "", "elastic.reset_limit",
           "end the job after so many restarts of the training because of failures (default: no limit)",
           metavar="N"),
    _value(_ELASTIC, "spares", int, "", "elastic.spares",
           "start so many processes more than --max-np, which wait to take the place of one that dies (needs slots)",
           metavar="K"),
    _value(_ELASTIC, "preemption-grace", int, "", "elastic.preemption_grace",
           "seconds between a SIGTERM of a rank and its end: it commits and leaves (default: it ends immediately) "
           "[HOROVOD_PREEMPTION_GRACE]", low=1, metavar="SECONDS"),
    _value(_ELASTIC, "elastic-chaos", float, "", "",
           "kill a rank about every so many seconds, on purpose: a test of your program", low=0.01,
           metavar="SECONDS"),
    Option(_ELASTIC, "cooldown_range", ("--blacklist-cooldown-range",), int, "",
           "elastic.blacklist_cooldown_range",
           "seconds for which a host is not used after a failure, doubled each time (default: permanently)",
           low=None, nargs=2, metavar=("MIN", "MAX")),
)
# These make a job elastic.
_MAKE_ELASTIC: tuple[Option, ...] = (
    Option(_ELASTIC, "min_num_proc", ("--min-np", "--min-num-proc"), int, "", "elastic.min_np",
           "fewest processes of a job; makes it elastic (default: -np)", low=1),
    Option(_HOSTS, "host_discovery_script", ("--host-discovery-script",), str, "",
           "elastic.host_discovery_script",
           "command that prints the hosts of an elastic job, as lines host:slots; it is run again every second",
           low=None),
)
# fmt: on
_ALL = OPTIONS + _MAKE_ELASTIC + ELASTIC


def add_options(parser: argparse.ArgumentParser, hosts: argparse._MutuallyExclusiveGroup) -> None:
    """Adds every row of the tables; defaults are None, which means "not given"."""
    groups: dict[str, argparse._ActionsContainer] = {_HOSTS: hosts}
    for option in _ALL:
        if option.group not in groups:
            title = f"{option.group} (environment variables of the ranks)" if option.env else option.group
            groups[option.group] = parser.add_argument_group(title)
        group = groups[option.group]
        text = f"{option.help} [{option.env}]" if option.env else option.help
        if option.kind is bool:
            const: dict[str, Any] = {"dest": option.dest, "action": "store_const"}
            group.add_argument(*option.flags, **const, const=True, help=text)
            group.add_argument(*option.off_flags, **const, const=False, help="the opposite")
        else:
            more: dict[str, Any] = {
                "nargs": option.nargs,
                "metavar": option.metavar,
                "choices": option.choices,
            }
            kind = str.upper if option.choices else option.kind
            group.add_argument(*option.flags, dest=option.dest, type=kind, help=text, **more)


def load_config_file(path: str) -> dict[str, Any]:
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


def set_args_from_config(args: argparse.Namespace, config: dict[str, Any]) -> list[str]:
    """Sets the options that the command line did not set; returns unknown keys. Raises ValueError for wrong values."""
    known = {option.key for option in _ALL} | {"controller", "verbose"}
    unknown = []
    for section, content in config.items():
        if any(key.startswith(f"{section}.") for key in known):
            content = {} if content is None else content
            if not isinstance(content, dict):
                raise ValueError(
                    f"{section} in the configuration file must be a section with keys of its own, found {content!r}."
                )
        keys = [f"{section}.{key}" for key in content] if isinstance(content, dict) else [str(section)]
        unknown += [key for key in keys if key not in known]
    for option in _ALL:
        section, _, key = option.key.partition(".")
        content = config.get(section)
        # Hosts of the command line come before a script of the file.
        hidden = option.group == _HOSTS and (args.hosts or args.hostfile)
        if not isinstance(content, dict) or getattr(args, option.dest) is not None or hidden:
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
    names: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
    wanted = names.get(option.kind, f"a {option.kind.__name__}")
    if option.nargs:
        wanted = "a list of two integers"
        valid = isinstance(value, list) and len(value) == option.nargs and all(type(v) is int for v in value)
    elif option.kind is bool:
        valid = isinstance(value, bool)
    else:
        valid = not isinstance(value, (bool, dict, list)) and not (
            option.kind is int and isinstance(value, float)
        )
    try:
        if not valid:
            raise ValueError
        converted = value if option.nargs else option.kind(value)
    except ValueError:
        raise ValueError(
            f"{option.key} in the configuration file must be {wanted}, found {value!r}."
        ) from None
    if option.kind is bool:
        return converted is not option.inverted
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
    for option in _ALL:
        value = getattr(args, option.dest)
        if value is None or option.low is None:
            continue
        flag = option.flags[0]
        # Horovod's text, and the flag where its name is another one.
        more = "" if flag == f"--{option.dest.replace('_', '-')}" else f" ({flag})"
        for number in str(value).split(",") if option.kind is cpu_list else [value]:
            if option.high is not None and not option.low <= float(number) <= option.high:
                raise ValueError(f"{option.dest}={value} must be in [{option.low}, {option.high}]{more}")
            if not float(number) >= option.low:
                raise ValueError(f"{option.dest}={value} must be >= {option.low}{more}")


def check_options(args: argparse.Namespace) -> None:
    """Raises ValueError for options that are out of range or contradict each other, NotImplementedError for one that this
    version does not support."""
    validate_config_args(args)
    check_supported(args)
    check_elastic(args)


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


# ------------------------------------------------------------------------------------------------- the parser

_DESCRIPTION = (
    "Starts COMMAND once per process of a Horovod job, with the processes' output and rank in front of each "
    "line. The first process that fails ends the others and gives the exit code."
)


def _interfaces(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


_interfaces.__name__ = "interfaces"


def make_parser() -> argparse.ArgumentParser:
    """The parser of horovodrun. All defaults are None: "not given"."""
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np N [option ...] command [argument ...]",
        description=_DESCRIPTION,
    )
    add = parser.add_argument
    switch: dict[str, Any] = {"action": "store_const", "const": True}
    add("-v", "--version", **switch, help="print the version and exit")
    add("-np", "--num-proc", dest="num_proc", type=int, help="number of processes")
    add("-cb", "--check-build", **switch, help="print frameworks, backends and versions, and exit")
    add("--disable-cache", **switch, help="accepted; nothing is cached")
    add("--start-timeout", help="seconds the processes may take to find each other (30)")
    names = ("--network-interfaces", "--network-interface")
    add(*names, dest="nics", type=_interfaces, help="comma-separated interfaces to use")
    add("--output-filename", help="folder that gets rank.<n>/stdout and rank.<n>/stderr as well")
    add("-prefix-timestamp", "--prefix-output-with-timestamp", **switch, help="the time before each line")
    add("--verbose", **switch, help="print the commands and processes of the job")
    add("--config-file", help="YAML file with values for the options below")
    add("command", nargs=argparse.REMAINDER, help="the command to run, with its arguments")

    where = parser.add_argument_group(_HOSTS).add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", help="hosts and their slots: localhost:4, or h1:2,h2:2")
    where.add_argument("-hostfile", "--hostfile", help="file with a line 'HOST slots=N' per host")

    remote = parser.add_argument_group("other hosts (no effect on local processes)")
    remote.add_argument("-p", "--ssh-port", type=int, help="port of ssh")
    remote.add_argument("-i", "--ssh-identity-file", help="private key of ssh")
    text = "command that executes another one on {host}, instead of ssh [HOROVOD_REMOTE_SHELL]"
    remote.add_argument("--remote-shell", metavar="TEMPLATE", help=text)
    text = "Python that has horovod there (default: the same path as here) [HOROVOD_REMOTE_PYTHON]"
    remote.add_argument("--remote-python", metavar="PYTHON", help=text)

    add_options(parser, where)

    mpi = parser.add_argument_group("MPI (with --mpi)")
    mpi.add_argument(
        "--tcp", dest="tcp_flag", **switch, help="do not use InfiniBand; also without MPI [NCCL_IB_DISABLE]"
    )
    mpi.add_argument(
        "--mpi-args", help="more arguments of mpirun, as one text: --mpi-args='-x NAME --map-by numa'"
    )
    text = "arguments of mpirun that bind and map the processes, instead of: --bind-to none --map-by slot"
    mpi.add_argument("--binding-args", help=text)

    how = parser.add_argument_group("how the processes are started").add_mutually_exclusive_group()
    text = "by horovodrun itself (the default, unless the backend mpi is named)"
    how.add_argument("--gloo", dest="use_gloo", **switch, help=text)
    how.add_argument("--mpi", dest="use_mpi", **switch, help="by mpirun")
    how.add_argument(
        "--jsrun", dest="use_jsrun", **switch, help="not supported; the error names alternatives"
    )
    parser.set_defaults(run_func=None, executable=None)
    return parser


class HorovodArgs(argparse.Namespace):
    """All options of horovodrun as attributes, each None until the program sets it.

    `run_func`: a function without arguments to call on each rank, instead of `command`, a list of words.
    """

    def __init__(self) -> None:
        super().__init__(**{**vars(make_parser().parse_args([])), "command": None})
