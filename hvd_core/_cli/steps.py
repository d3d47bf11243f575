"""The results of the doctor: one step per check."""

from __future__ import annotations

from dataclasses import dataclass, field

GOOD, NOTE, BAD, SKIPPED = "good", "note", "bad", "skipped"


@dataclass
class Step:
    """One check. ``backend`` is "" if the check concerns all backends. ``ended``: whether the check's process ended, or
    was ended, before the check was done."""

    backend: str
    phase: str
    verdict: str
    text: str
    more: list[str] = field(default_factory=list)
    ended: bool = False
