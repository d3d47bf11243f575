"""The nearest valid name to a misspelt one, for error messages. Pure functions; any thread."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """`` Did you mean 'x'?``, or "" when no word of ``words`` is near ``word``."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
