"""Where pip finds the wheels of hvd-core and of its backends, for the commands in messages.

Nobody owns the names hvd-core and hvd-backend-* on the public index, so `pip install NAME` could install a stranger's
package. Every command in a message names the source instead. Any thread; imports nothing of hvd-core.
"""

from __future__ import annotations

import os
import shlex

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
