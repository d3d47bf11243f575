"""``hvd plugin check NAME``: the conformance kit with this command's configuration and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hvd_core._cli import output
from hvd_core._cli.examination import config, export

_KIT_REFUSES = (2, 3)  # wrong arguments, backend not found


def check(arguments: Sequence[str]) -> int:
    """Run the kit; ``arguments`` are its own (``python -m hvd_core.conformance --help``)."""
    from hvd_core.conformance import _command

    if not arguments:
        print("horovod: hvd plugin check needs the name of a backend; list: hvd plugin list", file=sys.stderr)
        return output.REFUSED
    if not arguments[0].startswith("-"):
        export(config(), arguments[0].lower())
    code = _command.main(arguments)
    return output.REFUSED if code in _KIT_REFUSES else code
