"""How the process of a rank has ended, as its keeper reports it: its exit code, or minus the number of the signal that
has ended it. An agent imports this: it starts without hvd_core.
"""

from __future__ import annotations

import signal


def signal_of(code: int) -> int | None:
    """The number of the signal that has ended a process; None if it has ended by itself."""
    return -code if code < 0 else None


def shell_code(code: int) -> int:
    """The code as a shell tells it, and horovodrun: 128 + the number of a signal."""
    return 128 - code if code < 0 else code


def describe_code(code: int) -> str:
    """The end of a process in words."""
    if code < 0:
        return f"killed by {_name(-code)}"
    if 128 < code <= 128 + signal.SIGRTMAX:
        return f"exit code {code}; a shell exits so when {_name(code - 128)} has killed its program"
    return f"exit code {code}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
