"""The table of the environment variables, with Horovod's names and defaults, and the one parser of their texts.

A value that cannot be understood is an error that names the variable, because a typo in a job script must not silently
become a default. Ranks, launchers and tools read a variable with the functions here, so that it means the same to all of
them: ``30``, ``30.5`` and ``3e1`` are times everywhere. ``EngineSettings`` holds what the engine gets, read once per
``init()``; ``OTHERS`` lists the other variables that have a default or a range.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")

Parser = Callable[[str, str], Any]
"""(text, name of the variable or option) -> value. Raises ValueError, which names the variable."""


@dataclass(frozen=True)
class _Number:
    """A number from 0 to ``most``."""

    whole: bool = False
    most: int = (1 << 62) - 1

    def __call__(self, text: str, name: str) -> float:
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            kind = "a whole number" if self.whole else "a number"
            raise ValueError(f"{name}={text!r} is not {kind}.") from None
        if not 0 <= value <= self.most:
            raise ValueError(f"{name}={text!r} is out of range: it must be between 0 and {self.most}.")
        return value


_NUMBER, _WHOLE = _Number(), _Number(whole=True)
_WHOLE_16, _WHOLE_32 = _Number(True, (1 << 16) - 1), _Number(True, (1 << 32) - 1)


def _port(text: str, name: str) -> int:
    return -1 if text.lower() == "auto" else int(_WHOLE_16(text, name))


def positive_seconds(text: str, name: str) -> float:
    """The time in a text, for ranks, launchers and their options alike: 30, 30.5 and 3e1 are times, 0 is not.

    Args:
        text: in seconds.
        name: the variable or option, for the message.

    Raises:
        ValueError: not a number, or not above 0 and below 1e9.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{name} must be a positive number of seconds, found {text!r}.")
    return seconds


def _flag(text: str, name: str) -> bool:
    if text.lower() in ("0", "false", "no", "off"):
        return False
    if text.lower() in ("1", "true", "yes", "on") or text.isdigit():
        return True
    raise ValueError(f"{name}={text!r} is neither 0 nor 1.")


def _inverse(text: str, name: str) -> bool:
    return not _flag(text, name)


def _level(text: str, name: str) -> int:
    level = {"warn": "warning"}.get(text.lower(), text.lower())
    if level not in LOG_LEVELS:
        raise ValueError(f"{name}={text!r} is not one of {', '.join(LOG_LEVELS)}.")
    return LOG_LEVELS.index(level)


def _as_text(text: str, name: str) -> str:
    return text


@dataclass(frozen=True)
class Setting:
    """An environment variable. ``doc`` is its meaning in docs/environment.md, ``shown`` its default there."""

    variable: str
    default: Any
    parse: Parser
    doc: str = ""
    shown: str = ""

    def read(self, environ: Mapping[str, str]) -> Any:
        """The value, or the default where the variable is unset or empty. Raises ValueError that names the variable."""
        text = environ.get(self.variable, "").strip()
        return self.parse(text, self.variable) if text else self.default


def _setting(default: Any, variable: str, parse: Parser, doc: str, shown: str | None = None) -> Any:
    """A field of EngineSettings."""
    if shown is None:
        shown = str(int(default)) if isinstance(default, bool) else f"{default}" or "unset"
        shown = shown.removesuffix(".0")
    return field(default=default, metadata={"setting": Setting(variable, default, parse, doc, shown)})


@dataclass(frozen=True)
class EngineSettings:
    """The settings that the engine gets at its start. A suffix names the unit of a time; sizes are in bytes."""

    fusion_threshold: int = _setting(
        128 << 20, "HOROVOD_FUSION_THRESHOLD", _WHOLE, "most bytes in one batch; 0: no fusion"
    )
    cycle_time_ms: float = _setting(
        1.0,
        "HOROVOD_CYCLE_TIME",
        _NUMBER,
        "milliseconds. There are no cycles: this is the coalescing delay of small tensors that no caller waits for, and "
        "the dissolve delay of known batches; 0: no delay",
    )
    autotune: bool = _setting(
        False,
        "HOROVOD_AUTOTUNE",
        _flag,
        "1: search for a better fusion threshold and coalescing delay while the job trains; a variable that is set stays "
        "as it is. See [performance.md](performance.md#autotuning)",
    )
    autotune_log: str = _setting(
        "", "HOROVOD_AUTOTUNE_LOG", _as_text, "file to which rank 0 writes what the search has tried, as CSV"
    )
    autotune_warmup_samples: int = _setting(
        3, "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", _WHOLE_16, "samples at the beginning that do not count"
    )
    autotune_steps_per_sample: int = _setting(
        10, "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", _WHOLE_16, "steps of a sample"
    )
    autotune_max_samples: int = _setting(
        20,
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        _WHOLE_16,
        "how many settings are tried at most; the name is the original's, whose search is another one",
    )
    cache_capacity: int = _setting(
        1024,
        "HOROVOD_CACHE_CAPACITY",
        _WHOLE_32,
        "how many names and signatures each link remembers; 0: none",
    )
    stall_warn_s: float = _setting(
        60.0,
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _NUMBER,
        "seconds until rank 0 warns of a name that only some ranks have submitted",
    )
    stall_abort_s: float = _setting(
        0.0,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _NUMBER,
        "seconds until this, or an operation that a backend does not complete, ends the job; 0: never. A value below the "
        "time of the warning counts as 0",
    )
    stall_json: str = _setting(
        "",
        "HOROVOD_STALL_REPORT_JSON",
        _as_text,
        "file to which rank 0 appends each stall report as one line of JSON",
    )
    operation_timeout_s: float = _setting(
        600.0,
        "HOROVOD_OPERATION_TIMEOUT_SECONDS",
        _NUMBER,
        "seconds that a backend may take for an operation that all ranks have submitted, until this ends the job; 0: for "
        "ever",
    )
    log_level: int = _setting(
        3,
        "HOROVOD_LOG_LEVEL",
        _level,
        f"least severity of the engine's log: {', '.join(LOG_LEVELS)}",
        "warning",
    )
    """Index of LOG_LEVELS."""
    log_with_time: bool = _setting(
        True, "HOROVOD_LOG_HIDE_TIME", _inverse, "1: no time in the lines of the log", "0"
    )
    """Without HOROVOD_LOG_HIDE_TIME, HOROVOD_LOG_TIMESTAMP decides, which says the opposite."""
    log_to_python: bool = _setting(
        False,
        "HOROVOD_LOG_TO_PYTHON",
        _flag,
        "1: lines of the engine's log go to Python's logger `horovod`, in place of stderr",
    )
    start_timeout_s: float = _setting(
        30.0, "HOROVOD_START_TIMEOUT", positive_seconds, "seconds until all ranks must have called `init()`"
    )
    spin_us: float | None = _setting(
        None,
        "HOROVOD_SPIN_US",
        _NUMBER,
        "microseconds for which a waiting caller polls before it sleeps",
        "50; 2 with more ranks than cores",
    )
    hierarchical_allreduce: bool | None = _setting(
        None,
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        _flag,
        "on several hosts: 1: over two levels, 0: flat. On devices: [two levels](plugins.md#devices-on-several-hosts)",
        "1 if a backend within hosts and one between them were chosen",
    )
    hierarchical_allgather: bool | None = _setting(
        None, "HOROVOD_HIERARCHICAL_ALLGATHER", _flag, "likewise, for allgather", "likewise"
    )
    hierarchical_overlap: bool = _setting(
        True,
        "HOROVOD_HIERARCHICAL_OVERLAP",
        _flag,
        "0: no overlap of the two levels in a large allreduce over several hosts",
    )
    emulation: bool = _setting(
        True,
        "HOROVOD_EMULATION",
        _flag,
        "0: refuse operations and element types that a backend lacks, in place of composing them",
    )
    doctor: bool = _setting(
        True,
        "HOROVOD_DOCTOR",
        _flag,
        "0: [`hvd doctor`](troubleshooting.md#ask-a-running-job) cannot ask the processes of this job",
    )
    check_consistency: bool = _setting(
        False,
        "HOROVOD_CHECK_CONSISTENCY",
        _flag,
        "1: warn of ranks that begin to train with different weights, because the first broadcast is missing",
    )
    flight_recorder: bool = _setting(
        True,
        "HOROVOD_FLIGHT_RECORDER",
        _flag,
        "0: the last events of each rank are not recorded; see [timeline.md](timeline.md#the-flight-recorder)",
    )
    timeline: str = _setting(
        "",
        "HOROVOD_TIMELINE",
        _as_text,
        "the file for the [timeline](timeline.md) of rank 0, with `{rank}` in it: of each rank; `DYNAMIC`: none until "
        "`start_timeline()`",
    )
    timeline_mark_cycles: bool = _setting(
        False, "HOROVOD_TIMELINE_MARK_CYCLES", _flag, "1: rounds of the engine with work are marked in it"
    )
    timeline_all_ranks: bool = _setting(
        False, "HOROVOD_TIMELINE_ALL_RANKS", _flag, "1: every rank writes a timeline"
    )
    timeline_max_bytes: int = _setting(
        0,
        "HOROVOD_TIMELINE_MAX_BYTES",
        _WHOLE,
        "most bytes of a rank's timeline: the oldest events are dropped; 0: no limit",
    )
    timeline_live: int = _setting(
        0,
        "HOROVOD_TIMELINE_LIVE",
        _port,
        "port on which the first rank of each host has the [live timeline](timeline.md#live) served, on this host only; "
        "`auto`: any free port; 0: none",
    )
    """-1: any free port."""
    metrics_port: int = _setting(
        0,
        "HOROVOD_METRICS_PORT",
        _port,
        "port on which the first rank of each host has [metrics](metrics.md) served; `auto`: any free port; 0: none",
    )
    """-1: any free port."""
    metrics_address: str = _setting(
        "127.0.0.1",
        "HOROVOD_METRICS_ADDRESS",
        _as_text,
        "the address of that port; `0.0.0.0`: other machines may ask too, and the token crosses the network unencrypted",
    )
    watch_token_file: str = _setting(
        "",
        "HOROVOD_WATCH_TOKEN_FILE",
        _as_text,
        "file with the token for the live timeline and the metrics; without it a new one is made and printed",
    )
    thread_affinity: str = _setting(
        "",
        "HOROVOD_THREAD_AFFINITY",
        _as_text,
        "core of the engine's thread: one per local rank, or a single number that counts up",
    )
    """The text itself: it can be checked only when the ranks of the host are known."""

    @property
    def watched(self) -> bool:
        """Whether a process of its own reads the flight recorders (hvd_core/_observe/watch)."""
        return bool(self.timeline_live or self.metrics_port)


_ENGINE: dict[str, Setting] = {f.name: f.metadata["setting"] for f in fields(EngineSettings)}

OTHERS = (
    Setting("HOROVOD_STALL_CHECK_DISABLE", False, _flag),
    Setting("HOROVOD_LOG_TIMESTAMP", None, _flag),
    Setting("HOROVOD_TLS", False, _flag),
    Setting("HOROVOD_DYNAMIC_PROCESS_SETS", False, _flag),
    Setting("HOROVOD_GLOO_TIMEOUT_SECONDS", 30.0, positive_seconds),
    Setting("HOROVOD_ELASTIC_TIMEOUT", 600.0, positive_seconds),
    Setting("HOROVOD_ELASTIC_GRACE", 600.0, positive_seconds),
    Setting("HOROVOD_PREEMPTION_GRACE", None, positive_seconds),
    Setting("HOROVOD_SPARK_START_TIMEOUT", 600.0, positive_seconds),
)
"""The variables of launchers and of the start of a job."""

_TABLE: dict[str, Setting] = {setting.variable: setting for setting in (*_ENGINE.values(), *OTHERS)}


def read(variable: str, environ: Mapping[str, str] | None = None) -> Any:
    """The value of a variable of the table, or its default.

    Args:
        variable: such as ``HOROVOD_START_TIMEOUT``.
        environ: os.environ by default.

    Raises:
        KeyError: the table has no such variable.
        ValueError: its text is not valid; the message names the variable.

    Example:
        >>> read("HOROVOD_START_TIMEOUT", {"HOROVOD_START_TIMEOUT": "1e2"})
        100.0
    """
    return _TABLE[variable].read(os.environ if environ is None else environ)


def seconds_of(environ: Mapping[str, str], variable: str, default: float | None = None) -> float:
    """The time of a variable of the table; ``default`` replaces that of the table. Raises as read()."""
    if default is not None and not environ.get(variable, "").strip():
        return default
    return float(read(variable, environ))


def flag_of(environ: Mapping[str, str], variable: str) -> bool:
    """Whether a variable of the table is switched on. Raises as read()."""
    return bool(read(variable, environ))


def encryption_wanted(environ: Mapping[str, str]) -> bool:
    """Whether HOROVOD_TLS asks for encryption between hosts. Raises ValueError for a value that is not valid."""
    return flag_of(environ, "HOROVOD_TLS")


def engine_settings() -> list[Setting]:
    """The settings of EngineSettings, for docs/environment.md."""
    return list(_ENGINE.values())


def variable_of(name: str) -> str:
    """The environment variable of a field of EngineSettings."""
    return _ENGINE[name].variable


def read_environment(environ: Mapping[str, str] | None = None) -> EngineSettings:
    """All settings of the engine.

    Args:
        environ: os.environ by default.

    Raises:
        ValueError: a value is not valid; the message names its variable.
    """
    environ = os.environ if environ is None else environ
    values = {name: setting.read(environ) for name, setting in _ENGINE.items()}
    values["log_with_time"] = read_log_settings(environ)[1]
    flag_of(environ, "HOROVOD_DYNAMIC_PROCESS_SETS")  # checked before the ranks compare it
    if flag_of(environ, "HOROVOD_STALL_CHECK_DISABLE"):
        values["stall_warn_s"] = 0.0
    if not values["stall_warn_s"] or values["stall_abort_s"] < values["stall_warn_s"]:
        values["stall_abort_s"] = 0.0
    return EngineSettings(**values)


def read_log_settings(environ: Mapping[str, str]) -> tuple[int | None, bool]:
    """(index of LOG_LEVELS, or None if no level is set; whether lines have the time). Raises ValueError that names the
    variable if a value is not valid."""
    level = read("HOROVOD_LOG_LEVEL", environ) if environ.get("HOROVOD_LOG_LEVEL", "").strip() else None
    if environ.get("HOROVOD_LOG_HIDE_TIME", "").strip():
        return level, read("HOROVOD_LOG_HIDE_TIME", environ)
    return level, read("HOROVOD_LOG_TIMESTAMP", environ) is not False
