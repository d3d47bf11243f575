"""Runs a plugin's code in a sandbox, with a timeout for each phase, for the commands that examine backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hvd_core._base import sandbox
from hvd_core.backends import phases
from hvd_core.backends.messages import of_exception


def run_sandboxed(
    work: Callable[[Callable[[object], None]], None], timeouts_s: Mapping[str, float]
) -> sandbox.Report:
    """Run ``work(send)``, which takes backends through their phases, in a fork. ``send(value)`` gives the caller a JSON
    value, which is not lost if a later phase fails.

    Must be called on the only thread of this process, before it has imported a plugin.
    """

    def phased(reporter: sandbox.Reporter) -> None:
        phases.listen(reporter.enter)
        try:
            work(reporter.send)
        except BaseException as error:
            reporter.enter(phases.left_by(error))
            raise

    return sandbox.run_forked(phased, timeouts_s, describe_error=of_exception)
