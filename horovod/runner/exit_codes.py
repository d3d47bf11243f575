"""Exit codes of ranks as their keeper reports them: a process that a signal has ended counts as 128 + its number. An
agent imports this: it starts without hvd_core.
"""

from __future__ import annotations

import signal


def signal_of(code: int) -> int | None:
    """The number of the signal that has ended a process; None if it has ended by itself, as a program does with 255."""
    return code - 128 if 128 < code <= 128 + signal.SIGRTMAX else None


def describe_code(code: int) -> str:
    """An exit code in words."""
    number = signal_of(code)
    if number is None:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:  # most real-time signals have no name
        return f"killed by signal {number}"
