"""What the command's exit codes mean, for scripts."""

OK = 0
"""The question was answered, and what was looked at is good."""
FINDINGS = 1
"""Answered, and something is not as it should be: a phase that fails, a red case."""
REFUSED = 2
"""Not answered: a mistake on the command line, an unknown backend, a file that cannot be read."""
INTERRUPTED = 130
"""Ctrl-C."""
