"""What error messages suggest: the nearest valid name to a misspelt one, and the pip command for a wheel.

Nobody owns the names hvd-core and hvd-backend-* on the public index, so `pip install NAME` could install a stranger's
package. Every command in a message names the source instead. Any thread; imports nothing of hvd-core.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterable


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """`` Did you mean 'x'?``, or "" when no word of ``words`` is near ``word``."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


# A distributor's folder or page of wheels, or options of pip. Empty: messages have a placeholder.
SOURCE = ""
VARIABLE = "HOROVOD_WHEELS"
_PLACEHOLDER = "WHEELS"


def pip_install(requirement: str, *options: str) -> str:
    """The command that installs a wheel from the source, which HOROVOD_WHEELS or the distributor names."""
    source = os.environ.get(VARIABLE, "").strip() or SOURCE
    # A value that begins with a dash is options of pip.
    where = (
        source if source.startswith("-") else f"--no-index --find-links {shlex.quote(source or _PLACEHOLDER)}"
    )
    command = " ".join(["pip install", where, *options, shlex.quote(requirement)])
    return command if source else f"{command} ({_PLACEHOLDER}: the folder or page with its wheel)"
