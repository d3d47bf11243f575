"""The exit codes of the command ``hvd``, for scripts."""

OK = 0
"""No faults were found."""
FINDINGS = 1
"""A fault was found: a phase or a case that fails."""
REFUSED = 2
"""The command could not run: wrong arguments, an unknown backend, a file that cannot be read."""
INTERRUPTED = 130
"""Ctrl-C."""
