"""A stage of Spark whose tasks are slots for ranks of one job: its thread on the driver, its cancellation, its failure.

The stage runs in a thread, so that Ctrl-C and the interrupt of a notebook are seen; it has a tag, by which it
alone is cancelled. Any thread may call.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_CANCEL_S = 30.0
# Of a message of Spark: the sentence that says how an executor was lost.
_LOST = re.compile(r"ExecutorLostFailure \((.+?)\)(?: Reason: (.+))?")
# Its traceback ends with a line that is not indented.
_OF_A_TASK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)")


def task_function(plan: dict[str, Any], sent: Any) -> Callable[[Any], Iterator[Any]]:
    """The function of the tasks: run() of _task.py with the fields of a plan and the broadcast function `sent`.

    Pickled by value, as it is local, so that it can say what an executor lacks."""

    def run_task(_: Any) -> Iterator[Any]:
        try:
            from horovod.spark import _task
        except ImportError as error:
            import socket
            import sys

            raise ImportError(
                f"the Python of the executor on host {socket.gethostname()}, {sys.executable}, cannot import "
                f"horovod.spark ({error}). Install hvd-core there as on the driver, or let spark.pyspark.python "
                "(PYSPARK_PYTHON) name a Python that has it."
            ) from None
        return _task.run(plan, sent.value)

    return run_task


class Stage:
    """A stage under way.

    Args:
        context: the SparkContext.
        num_tasks: the number of tasks.
        plan: the fields of a Plan of _task.py.
        function: the pickled function of the ranks.
        barrier: all tasks begin together. Without it they begin as slots become free, and Spark repeats those that fail.

    Attributes:
        num_tasks: as given.
        error: why the stage failed.
        cancelled: whether cancel() was called.
    """

    def __init__(
        self, context: Any, num_tasks: int, plan: dict[str, Any], function: bytes, barrier: bool
    ) -> None:
        from pyspark import InheritableThread

        self.num_tasks = num_tasks
        self.error: BaseException | None = None
        self.cancelled = False
        self._context, self._barrier = context, barrier
        # Large closures make the start of each task slow; the function may hold a model.
        self._sent = context.broadcast(function)
        self._task = task_function(plan, self._sent)
        self._tag = f"horovod-{secrets.token_hex(6)}"
        # Not Thread.join(): an interrupted join() leaves the thread marked as ended.
        self._ended_event = threading.Event()
        InheritableThread(target=self._run, name="hvd-spark-job", daemon=True).start()

    def _run(self) -> None:
        try:
            self._context.addJobTag(self._tag)
            self._context.setInterruptOnCancel(True)
            places = self._context.parallelize(range(self.num_tasks), self.num_tasks)
            places = places.barrier() if self._barrier else places
            places.mapPartitions(self._task).collect()
        except BaseException as error:
            self.error = error
        finally:
            self._ended_event.set()

    @property
    def has_ended(self) -> bool:
        return self._ended_event.is_set()

    def finish(self, seconds: float) -> None:
        """Waits for the end of the tasks, and cancels those that have not ended in time."""
        if not self._ended_event.wait(seconds):
            self.cancel()
        with contextlib.suppress(Exception):  # the session may have ended
            self._sent.destroy()

    def cancel(self) -> None:
        """Ends the tasks, and waits until they have ended."""
        self.cancelled = True
        until = time.monotonic() + _CANCEL_S
        while not self._ended_event.is_set() and time.monotonic() < until:
            with contextlib.suppress(Exception):  # the session may be stopping
                # Again and again: a job that has not been submitted yet is not found.
                self._context.cancelJobsWithTag(self._tag)
            self._ended_event.wait(1.0)


def stage_failure(error: BaseException) -> BaseException:
    """The exception for a stage that failed before its ranks began: that of the task, without Spark's 200 lines."""
    found = _OF_A_TASK.search(str(error))
    if found is None:
        return error
    return RuntimeError(f"a task failed before its rank began: {found[1].strip()}")


def lost_executor(error: BaseException | None) -> str | None:
    """Which executor was lost and why, if that made the stage fail."""
    found = _LOST.search(str(error))
    return None if found is None else f"{found[1]}. {(found[2] or '').strip()}".rstrip()
