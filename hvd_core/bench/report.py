"""Numbers out of rounds, and tables out of numbers. Pure functions; any thread."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path


def size_text(nbytes: int) -> str:
    """4 -> "4 B", 65536 -> "64 KiB"."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):g} {unit}"
    return f"{nbytes} B"


def parse_size(text: str, of: int = 4) -> int:
    """ "4", "64K", "16M", "1G" (binary units) -> bytes, a multiple of `of`. Raises ValueError."""
    text = text.strip().upper().removesuffix("B").removesuffix("I").strip()
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    number = text[:-1] if factor > 1 else text
    value = int(number) * factor if number.isdecimal() else 0
    if value < of or value % of:
        raise ValueError(f"size {text!r}: need a positive multiple of {of} bytes, such as 64K")
    return value


def ratio(others: list[float | None], ours: list[float | None]) -> float | None:
    """Median over the rounds of other / ours; rounds in which one of the two is missing do not count."""
    pairs = [a / b for a, b in zip(others, ours) if a is not None and b]
    return statistics.median(pairs) if pairs else None


def summary(rounds: list[float | None], nbytes: int) -> dict | None:
    """Seconds of several rounds -> {"median_us", "min_us", "algbw_gb_s", "rounds_us"}."""
    good = [seconds for seconds in rounds if seconds is not None]
    if not good:
        return None
    median = statistics.median(good)
    return {
        "median_us": median * 1e6,
        "min_us": min(good) * 1e6,
        "algbw_gb_s": nbytes / median / 1e9,
        "rounds_us": [seconds * 1e6 for seconds in good],
    }


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with aligned columns: first column left, others right."""
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: list[str]) -> str:
        padded = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def number(value: float | None) -> str:
    """Three significant digits; a dash for nothing."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def machine() -> dict:
    """The machine that the figures were measured on."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min": os.getloadavg()[0],
    }
