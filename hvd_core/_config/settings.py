"""The table of the engine's environment variables, with Horovod's names and defaults.

Read once per ``init()``. A value that cannot be understood is an error that names the variable, because a typo in a job
script must not silently become a default. ``python -m hvd_core._config`` writes the table into docs/environment.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
BEGIN, END = "<!-- engine settings: begin (generated) -->", "<!-- engine settings: end -->"


_MOST = (1 << 62) - 1  # of a number without a bound of its own


def _parse_number(text: str, name: str, whole: bool = False, most: int = _MOST) -> float:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name}={text!r} is not {kind}.") from None
    if not 0 <= value <= most:
        raise ValueError(f"{name}={text!r} is out of range: it must be between 0 and {most}.")
    return value


def _whole(text: str, name: str) -> int:
    return int(_parse_number(text, name, whole=True))


def _whole_of_32_bits(text: str, name: str) -> int:
    return int(_parse_number(text, name, whole=True, most=(1 << 32) - 1))


def _whole_of_16_bits(text: str, name: str) -> int:
    return int(_parse_number(text, name, whole=True, most=(1 << 16) - 1))


def _port(text: str, name: str) -> int:
    if text.lower() == "auto":
        return -1
    return int(_parse_number(text, name, whole=True, most=65535))


def positive_seconds(text: str, name: str) -> float:
    """The time that the variable or option ``name`` gives. For ranks, launchers and their options alike: 30, 30.5 and 3e1
    are times, 0 is not. Raises ValueError."""
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


def _setting(default: Any, variable: str, parse: Callable[[str, str], Any], meaning: str, shown: str) -> Any:
    """A field of EngineSettings. ``parse(text, variable)`` returns None for "use the default". ``shown``: the default in
    the documentation."""
    return field(
        default=default, metadata={"variable": variable, "parse": parse, "meaning": meaning, "shown": shown}
    )


@dataclass(frozen=True)
class EngineSettings:
    """The settings that the engine gets at its start. A suffix names the unit of a time; sizes are in bytes."""

    fusion_threshold: int = _setting(
        128 << 20, "HOROVOD_FUSION_THRESHOLD", _whole, "most bytes in one batch; 0: no fusion", "134217728"
    )
    cycle_time_ms: float = _setting(
        1.0,
        "HOROVOD_CYCLE_TIME",
        _parse_number,
        "milliseconds. There are no cycles: this is the coalescing delay of small tensors that no caller waits for, and "
        "the dissolve delay of known batches; 0: no delay",
        "1",
    )
    autotune: bool = _setting(
        False,
        "HOROVOD_AUTOTUNE",
        _flag,
        "1: search for a better fusion threshold and coalescing delay while the job trains; a variable that is set stays "
        "as it is. See [performance.md](performance.md#autotuning)",
        "0",
    )
    autotune_log: str = _setting(
        "",
        "HOROVOD_AUTOTUNE_LOG",
        _as_text,
        "file to which rank 0 writes what the search has tried, as CSV",
        "unset",
    )
    autotune_warmup_samples: int = _setting(
        3,
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        _whole_of_16_bits,
        "samples at the beginning that do not count",
        "3",
    )
    autotune_steps_per_sample: int = _setting(
        10, "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", _whole_of_16_bits, "steps of a sample", "10"
    )
    autotune_max_samples: int = _setting(
        20,
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        _whole_of_16_bits,
        "how many settings are tried at most; the name is the original's, whose search is another one",
        "20",
    )
    cache_capacity: int = _setting(
        1024,
        "HOROVOD_CACHE_CAPACITY",
        _whole_of_32_bits,
        "how many names and signatures each link remembers; 0: none",
        "1024",
    )
    stall_warn_s: float = _setting(
        60.0,
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _parse_number,
        "seconds until rank 0 warns of a name that only some ranks have submitted",
        "60",
    )
    stall_abort_s: float = _setting(
        0.0,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _parse_number,
        "seconds until this, or an operation that a backend does not complete, ends the job; 0: never. A value below the "
        "time of the warning counts as 0",
        "0",
    )
    stall_json: str = _setting(
        "",
        "HOROVOD_STALL_REPORT_JSON",
        _as_text,
        "file to which rank 0 appends each stall report as one line of JSON",
        "unset",
    )
    operation_timeout_s: float = _setting(
        600.0,
        "HOROVOD_OPERATION_TIMEOUT_SECONDS",
        _parse_number,
        "seconds that a backend may take for an operation that all ranks have submitted, until this ends the job; 0: for "
        "ever",
        "600",
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
        True,
        "HOROVOD_LOG_HIDE_TIME",
        _inverse,
        "1: no time in the lines of the log",
        "0",
    )
    """Without HOROVOD_LOG_HIDE_TIME, HOROVOD_LOG_TIMESTAMP decides, which says the opposite."""
    log_to_python: bool = _setting(
        False,
        "HOROVOD_LOG_TO_PYTHON",
        _flag,
        "1: lines of the engine's log go to Python's logger `horovod`, in place of stderr",
        "0",
    )
    start_timeout_s: float = _setting(
        30.0,
        "HOROVOD_START_TIMEOUT",
        positive_seconds,
        "seconds until all ranks must have called `init()`",
        "30",
    )
    spin_us: float | None = _setting(
        None,
        "HOROVOD_SPIN_US",
        _parse_number,
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
        "1",
    )
    emulation: bool = _setting(
        True,
        "HOROVOD_EMULATION",
        _flag,
        "0: refuse operations and element types that a backend lacks, in place of composing them",
        "1",
    )
    doctor: bool = _setting(
        True,
        "HOROVOD_DOCTOR",
        _flag,
        "0: [`hvd doctor`](troubleshooting.md#ask-a-running-job) cannot ask the processes of this job",
        "1",
    )
    check_consistency: bool = _setting(
        False,
        "HOROVOD_CHECK_CONSISTENCY",
        _flag,
        "1: warn of ranks that begin to train with different weights, because the first broadcast is missing",
        "0",
    )
    flight_recorder: bool = _setting(
        True,
        "HOROVOD_FLIGHT_RECORDER",
        _flag,
        "0: the last events of each rank are not recorded; see [timeline.md](timeline.md#the-flight-recorder)",
        "1",
    )
    timeline: str = _setting(
        "",
        "HOROVOD_TIMELINE",
        _as_text,
        "the file for the [timeline](timeline.md) of rank 0, with `{rank}` in it: of each rank; `DYNAMIC`: none until "
        "`start_timeline()`",
        "unset",
    )
    timeline_mark_cycles: bool = _setting(
        False,
        "HOROVOD_TIMELINE_MARK_CYCLES",
        _flag,
        "1: rounds of the engine with work are marked in it",
        "0",
    )
    timeline_all_ranks: bool = _setting(
        False, "HOROVOD_TIMELINE_ALL_RANKS", _flag, "1: every rank writes a timeline", "0"
    )
    timeline_max_bytes: int = _setting(
        0,
        "HOROVOD_TIMELINE_MAX_BYTES",
        _whole,
        "most bytes of a rank's timeline: the oldest events are dropped; 0: no limit",
        "0",
    )
    timeline_live: int = _setting(
        0,
        "HOROVOD_TIMELINE_LIVE",
        _port,
        "port on which the first rank of each host has the [live timeline](timeline.md#live) served, on this host only; "
        "`auto`: any free port; 0: none",
        "0",
    )
    """-1: any free port."""
    metrics_port: int = _setting(
        0,
        "HOROVOD_METRICS_PORT",
        _port,
        "port on which the first rank of each host has [metrics](metrics.md) served; `auto`: any free port; 0: none",
        "0",
    )
    """-1: any free port."""
    metrics_address: str = _setting(
        "127.0.0.1",
        "HOROVOD_METRICS_ADDRESS",
        _as_text,
        "the address of that port; `0.0.0.0`: other machines may ask too, and the token crosses the network unencrypted",
        "127.0.0.1",
    )
    watch_token_file: str = _setting(
        "",
        "HOROVOD_WATCH_TOKEN_FILE",
        _as_text,
        "file with the token for the live timeline and the metrics; without it a new one is made and printed",
        "unset",
    )
    thread_affinity: str = _setting(
        "",
        "HOROVOD_THREAD_AFFINITY",
        _as_text,
        "core of the engine's thread: one per local rank, or a single number that counts up",
        "unset",
    )
    """The text itself: it can be checked only when the ranks of the host are known."""

    @property
    def watched(self) -> bool:
        """Whether a process of its own reads the flight recorders (hvd_core/_observe/watch)."""
        return bool(self.timeline_live or self.metrics_port)


def variable_of(name: str) -> str:
    """The environment variable of a field of EngineSettings."""
    return next(f.metadata["variable"] for f in fields(EngineSettings) if f.name == name)


def read_environment(environ: Mapping[str, str] | None = None) -> EngineSettings:
    """Read all settings from ``environ`` (os.environ by default). Raises ValueError that names the variable if a value is
    not valid."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for setting in fields(EngineSettings):
        variable = setting.metadata["variable"]
        text = environ.get(variable, "").strip()
        value = setting.metadata["parse"](text, variable) if text else None
        values[setting.name] = setting.default if value is None else value
    values["log_with_time"] = read_log_settings(environ)[1]
    disabled = environ.get("HOROVOD_STALL_CHECK_DISABLE", "").strip()
    if disabled and _flag(disabled, "HOROVOD_STALL_CHECK_DISABLE"):
        values["stall_warn_s"] = 0.0
    if not values["stall_warn_s"] or values["stall_abort_s"] < values["stall_warn_s"]:
        values["stall_abort_s"] = 0.0
    return EngineSettings(**values)


def read_log_settings(environ: Mapping[str, str]) -> tuple[int | None, bool]:
    """(index of LOG_LEVELS, or None if no level is set; whether lines have the time). Raises ValueError that names the
    variable if a value is not valid."""

    def read(variable: str, parse: Callable[[str, str], Any]) -> Any:
        text = environ.get(variable, "").strip()
        return parse(text, variable) if text else None

    hidden, shown = read("HOROVOD_LOG_HIDE_TIME", _flag), read("HOROVOD_LOG_TIMESTAMP", _flag)
    with_time = not hidden if hidden is not None else shown is not False
    return read("HOROVOD_LOG_LEVEL", _level), with_time


def seconds_of(environ: Mapping[str, str], variable: str, default: float = 30.0) -> float:
    """The time that a variable gives, or the default. Raises ValueError if it is not a positive number of seconds."""
    text = environ.get(variable, "").strip()
    return positive_seconds(text, variable) if text else default


def encryption_wanted(environ: Mapping[str, str]) -> bool:
    """Whether HOROVOD_TLS asks for encryption between hosts. Raises ValueError for a value that is not valid."""
    text = environ.get("HOROVOD_TLS", "").strip()
    return bool(text) and _flag(text, "HOROVOD_TLS")


def markdown() -> str:
    """The table of the engine's settings in docs/environment.md."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for setting in fields(EngineSettings):
        data = setting.metadata
        lines.append(f"| `{data['variable']}` | {data['shown']} | {data['meaning']} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """``page`` with the table between the markers written anew. Raises ValueError if the page has no markers."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page lacks the lines '{BEGIN}' and '{END}'")
    head, rest = page.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{markdown()}{END}{rest.split(END, 1)[1]}"
