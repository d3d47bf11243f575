"""The engine's environment variables, with Horovod's names and defaults.

Read once per ``init()``. A value that cannot be understood is an error that names the variable, because a typo in a job
script should not silently become a default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


@dataclass(frozen=True)
class EngineSettings:
    """What the engine is told at its start. Times as the suffix says, sizes in bytes."""

    fusion_threshold: int = 128 << 20
    """HOROVOD_FUSION_THRESHOLD: most bytes in one batch; 0: no fusion."""
    cycle_time_ms: float = 1.0
    """HOROVOD_CYCLE_TIME: there are no cycles here; it bounds how long a tensor may be held back so that the others of
    its usual batch can join it (0: not at all)."""
    cache_capacity: int = 1024
    """HOROVOD_CACHE_CAPACITY: how many names and signatures each link remembers; 0: none."""
    stall_warn_s: float = 60.0
    """HOROVOD_STALL_CHECK_TIME_SECONDS; 0 when HOROVOD_STALL_CHECK_DISABLE is set."""
    stall_abort_s: float = 0.0
    """HOROVOD_STALL_SHUTDOWN_TIME_SECONDS; 0: never."""
    log_level: int = 3
    """HOROVOD_LOG_LEVEL as an index of LOG_LEVELS."""
    log_with_time: bool = True
    """HOROVOD_LOG_HIDE_TIME."""
    start_timeout_s: float = 30.0
    """HOROVOD_START_TIMEOUT."""
    spin_us: float | None = None
    """HOROVOD_SPIN_US: how long a waiting caller looks before it sleeps; unset: by the number of cores."""
    hierarchical_allreduce: bool | None = None
    """HOROVOD_HIERARCHICAL_ALLREDUCE; None (unset): where a backend within hosts and one between them make it natural."""
    hierarchical_allgather: bool | None = None
    """HOROVOD_HIERARCHICAL_ALLGATHER, likewise."""
    emulation: bool = True
    """HOROVOD_EMULATION: whether operations and types that a backend lacks are composed from those it has."""
    thread_affinity: str = ""
    """HOROVOD_THREAD_AFFINITY, as it stands: what is wrong with it can only be said once the host's ranks are known."""


def _number(environ: Mapping[str, str], name: str, default: float, whole: bool = False) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name}={text!r} is not {kind}.") from None
    if not 0 <= value < 1 << 62:
        raise ValueError(f"{name}={text!r} is out of range: it must not be negative.")
    return value


def _flag(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on") or text.isdigit():
        return True
    raise ValueError(f"{name}={text!r} is neither 0 nor 1.")


def _choice(environ: Mapping[str, str], name: str) -> bool | None:
    return _flag(environ, name) if environ.get(name, "").strip() else None


def _level(environ: Mapping[str, str]) -> int:
    text = environ.get("HOROVOD_LOG_LEVEL", "").strip().lower() or "warning"
    text = {"warn": "warning"}.get(text, text)
    if text not in LOG_LEVELS:
        raise ValueError(f"HOROVOD_LOG_LEVEL={text!r} is not one of {', '.join(LOG_LEVELS)}.")
    return LOG_LEVELS.index(text)


def read_environment(environ: Mapping[str, str] | None = None) -> EngineSettings:
    """Read all settings. Raises ValueError that names the variable for a value that makes no sense."""
    environ = os.environ if environ is None else environ
    warn = _number(environ, "HOROVOD_STALL_CHECK_TIME_SECONDS", 60.0)
    abort = _number(environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0)
    if _flag(environ, "HOROVOD_STALL_CHECK_DISABLE"):
        warn = 0.0
    if 0 < abort < warn:
        abort = 0.0
    spin = environ.get("HOROVOD_SPIN_US", "").strip()
    return EngineSettings(
        fusion_threshold=int(_number(environ, "HOROVOD_FUSION_THRESHOLD", 128 << 20, whole=True)),
        cycle_time_ms=_number(environ, "HOROVOD_CYCLE_TIME", 1.0),
        cache_capacity=int(_number(environ, "HOROVOD_CACHE_CAPACITY", 1024, whole=True)),
        stall_warn_s=warn,
        stall_abort_s=abort,
        log_level=_level(environ),
        log_with_time=not _flag(environ, "HOROVOD_LOG_HIDE_TIME"),
        start_timeout_s=_number(environ, "HOROVOD_START_TIMEOUT", 30.0) or 30.0,
        spin_us=_number(environ, "HOROVOD_SPIN_US", 0.0) if spin else None,
        hierarchical_allreduce=_choice(environ, "HOROVOD_HIERARCHICAL_ALLREDUCE"),
        hierarchical_allgather=_choice(environ, "HOROVOD_HIERARCHICAL_ALLGATHER"),
        emulation=_choice(environ, "HOROVOD_EMULATION") is not False,
        thread_affinity=environ.get("HOROVOD_THREAD_AFFINITY", "").strip(),
    )
