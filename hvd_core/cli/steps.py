"""What the doctor finds: one step per thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass, field

GOOD, NOTE, BAD, SKIPPED = "good", "note", "bad", "skipped"


@dataclass
class Step:
    """One thing that was looked at. ``backend`` is "" for what concerns all of them."""

    backend: str
    phase: str
    verdict: str
    text: str
    more: list[str] = field(default_factory=list)
