"""Numbers out of rounds, tables and SVG charts out of numbers. Pure functions; any thread."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape


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


def summary(rounds: list[float | None], nbytes: int) -> dict[str, Any] | None:
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


def machine() -> dict[str, Any]:
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


# ---- line charts as SVG, for `hvd bench --plot` and for the pages of docs/ --------------------------------------------

# Distinguishable without colours too: the dashes differ. Readable on a white and on a dark page.
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#e377c2")
_DASHES = ("", "6 3", "2 2", "8 3 2 3", "1 3")
_WIDTH, _HEIGHT = 480, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 48


@dataclass
class Line:
    """One series. ``points``: (x, y), both positive on a logarithmic axis."""

    name: str
    points: Sequence[tuple[float, float]]
    marks_only: bool = False


@dataclass
class Chart:
    """One pair of axes. ``y_range``: None for that of the data. ``x_text``, ``y_text``: a tick's label."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line] = field(default_factory=list)
    x_text: Callable[[float], str] = "{:g}".format
    y_text: Callable[[float], str] = "{:g}".format
    x_base: float = 10
    y_logarithmic: bool = True
    y_range: tuple[float, float] | None = None


def svg(charts: Sequence[Chart]) -> str:
    """The charts side by side, each with a legend below."""
    legend = max((len(chart.lines) + 1) // 2 for chart in charts) * 16 + 10
    width, height = _WIDTH * len(charts), _HEIGHT + legend
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, chart in enumerate(charts):
        parts.append(f'<g transform="translate({number * _WIDTH} 0)">{_chart(chart)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(chart: Chart) -> str:
    points = [point for line in chart.lines for point in line.points] or [(1.0, 1.0)]
    across = _Axis([x for x, _ in points], _LEFT, _WIDTH - _RIGHT, chart.x_base, True, None)
    up = _Axis([y for _, y in points], _HEIGHT - _BOTTOM, _TOP, 10, chart.y_logarithmic, chart.y_range)
    parts = [_text(_WIDTH / 2, 18, chart.title, "middle", 13)]
    for value in across.ticks():
        x = across.at(value)
        parts.append(_rule(x, _TOP, x, _HEIGHT - _BOTTOM))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 14, chart.x_text(value), "middle"))
    for value in up.ticks():
        y = up.at(value)
        parts.append(_rule(_LEFT, y, _WIDTH - _RIGHT, y))
        parts.append(_text(_LEFT - 5, y + 4, chart.y_text(value), "end"))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 14, chart.x_label, "middle"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_label)}</text>"
    )
    for number, line in enumerate(chart.lines):
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]
        places = [(across.at(x), up.at(y)) for x, y in line.points]
        style = f'stroke="{colour}" stroke-width="2" fill="none"' + (
            f' stroke-dasharray="{dash}"' if dash else ""
        )
        if not line.marks_only:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{path}" {style}/>')
        for x, y in places:
            radius, fill = (5, "white") if line.marks_only else (2.2, colour)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="{colour}"/>')
        column, row = number % 2, number // 2
        x, y = _LEFT + column * (_WIDTH - _LEFT) / 2, _HEIGHT + 8 + row * 16
        parts.append(f'<path d="M{x:.0f} {y} h22" {style}/>')
        parts.append(_text(x + 27, y + 4, line.name, "start"))
    return "\n".join(parts)


class _Axis:
    """Values to pixels from ``begin`` to ``end``."""

    def __init__(
        self,
        values: Sequence[float],
        begin: float,
        end: float,
        base: float,
        logarithmic: bool,
        given: tuple[float, float] | None,
    ) -> None:
        self.begin, self.end, self.base, self.logarithmic = begin, end, base, logarithmic
        low, high = given or (min(values), max(values))
        if logarithmic:
            self.low, self.high = math.log(low, base), math.log(high, base)
            if given is None and base == 10:
                self.low, self.high = math.floor(self.low + 1e-9), math.ceil(self.high - 1e-9)
        else:
            self.low, self.high = low if given else min(0.0, low), high
        if self.high <= self.low:
            self.high = self.low + 1

    def at(self, value: float) -> float:
        place = math.log(value, self.base) if self.logarithmic else value
        return self.begin + (place - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """At most about eight round values."""
        if not self.logarithmic:
            step = 10 ** math.floor(math.log10(self.high - self.low))
            step = next(s for s in (step / 5, step / 2, step, 2 * step) if (self.high - self.low) / s <= 8)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [n * step for n in range(first, last + 1)]
        first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
        each = max(1, math.ceil((last - first) / 8))
        return [self.base**n for n in range(first, last + 1, each)]


def _text(x: float, y: float, text: str, anchor: str, size: int = 0) -> str:
    of = f' font-size="{size}"' if size else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{of}>{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" stroke="#ddd"/>'
