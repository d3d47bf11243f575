"""The verdicts and results of cases. Plain data, equal in messages between processes and in reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

PASS, FAIL, SKIPPED, EMULATED = "PASS", "FAIL", "SKIPPED", "EMULATED"
# Of rows only: NATIVE served as declared; REFUSED not served, and nothing is composed instead.
NATIVE, REFUSED, NOTE = "NATIVE", "-", "NOTE"

_SHOWN_LINES = 8


class Failed(Exception):
    """The case fails on this rank, with this text, and ends."""


class Skip(Exception):
    """The case cannot be run here; the text is the reason."""


class Composed(Skip):
    """Not served, and rightly refused: hvd-core composes it. The case ends as EMULATED."""


@dataclass
class Row:
    """One line below a case: an element type and reduction, a size, a measurement."""

    what: str
    verdict: str
    text: str = ""


class CaseArgument:
    """The part of a case's argument that ends the case or adds rows to its report."""

    rows: list[Row]

    def row(self, what: str, verdict: str, text: str = "") -> None:
        """Adds a row to the report of the case."""
        self.rows.append(Row(what, verdict, text))

    def note(self, what: str, text: str) -> None:
        """Adds a measurement or remark, which does not change the verdict."""
        self.row(what, NOTE, text)

    @staticmethod
    def expect(condition: Any, text: str) -> None:
        """Raises Failed with the text if the condition is false."""
        if not condition:
            raise Failed(text)

    @staticmethod
    def skip(reason: str) -> NoReturn:
        """Ends the case as SKIPPED."""
        raise Skip(reason)


@dataclass
class Result:
    """A case's outcome. ``text``: the reason, for all verdicts but PASS. ``seconds``: how long it took, ranks in
    parallel."""

    case: str
    verdict: str
    text: str = ""
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def level(self) -> str:
        """``L2``."""
        return self.case.split(".")[0]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Result:
        """The reverse of as_dict()."""
        return Result(**{**data, "rows": [Row(**row) for row in data["rows"]]})


_SEVERITY = (NATIVE, EMULATED, REFUSED, NOTE, FAIL)


def merge(case: str, by_rank: dict[int, Result]) -> Result:
    """One result from the results of all ranks: a failure of one rank is a failure; the case is skipped if all skip."""
    seconds = max((r.seconds for r in by_rank.values()), default=0.0)
    rows: dict[str, Row] = {}
    for rank, result in sorted(by_rank.items()):
        for row in result.rows:
            text = f"rank {rank}: {row.text}" if row.verdict == FAIL and len(by_rank) > 1 else row.text
            known = rows.get(row.what)
            if known is None or _SEVERITY.index(row.verdict) > _SEVERITY.index(known.verdict):
                rows[row.what] = Row(row.what, row.verdict, text)
    merged = Result(case, PASS, "", list(rows.values()), seconds)
    failed = {rank: r for rank, r in sorted(by_rank.items()) if r.verdict == FAIL}
    bad = [row for row in merged.rows if row.verdict == FAIL]
    if failed or bad:
        merged.verdict = FAIL
        ranks_by_text: dict[str, list[int]] = {}
        for rank, r in failed.items():
            if r.text:
                ranks_by_text.setdefault(r.text, []).append(rank)
        texts = [
            f"{_ranks(ranks)}: {text}" if len(by_rank) > 1 else text for text, ranks in ranks_by_text.items()
        ]
        texts = texts or [f"{row.what}: {row.text}" for row in bad[:3]]
        merged.text = "; ".join(texts)
    elif by_rank and all(r.verdict == SKIPPED for r in by_rank.values()):
        merged.verdict, merged.text = SKIPPED, by_rank[min(by_rank)].text
    elif any(r.verdict == EMULATED for r in by_rank.values()):
        first = next(r for r in by_rank.values() if r.verdict == EMULATED)
        merged.verdict, merged.text = EMULATED, first.text
    return merged


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def shown_output(text: str) -> str:
    """What a process has written before it died, in one line: the beginning, which says what happened, and the end. The
    middle of a backtrace is left out."""
    lines = [line.strip() for line in text.strip().splitlines()]
    kept = lines if len(lines) <= _SHOWN_LINES else [*lines[:4], "...", *lines[-4:]]
    return " | ".join(kept)
