"""A stage of Spark whose tasks are slots or ranks of one job: its thread on the driver, its cancellation, its failure.

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

from horovod.spark._ranks import reported_begin
from hvd_core._bootstrap.store import StoreClient

_LOOK_S = 0.1
_CANCEL_S = 30.0
# Of a message of Spark: the sentence that says how an executor was lost.
_LOST = re.compile(r"ExecutorLostFailure \((.+?)\)(?: Reason: (.+))?")
# Its traceback ends with a line that is not indented.
_OF_A_TASK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)")


def task_function(kind: str, plan: dict[str, Any], sent: Any) -> Callable[[Any], Iterator[Any]]:
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
        return _task.run(kind, plan, sent.value)

    return run_task


class Stage:
    """`value`: what all tasks have returned; `error`: why the stage failed; `cancelled`: by cancel(). `ended` is called
    on the stage's thread after its end. Without `barrier` the tasks begin as slots become free, and Spark repeats those
    that fail."""

    def __init__(
        self,
        context: Any,
        num_tasks: int,
        task: Callable[[Any], Iterator[Any]],
        barrier: bool,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        from pyspark import InheritableThread

        self.value: list[tuple[int, bytes]] = []
        self.error: BaseException | None = None
        self.cancelled = False  # by this object
        self._context, self._num_tasks, self._task, self._barrier = context, num_tasks, task, barrier
        self._tag = f"horovod-{secrets.token_hex(6)}"
        # Not Thread.join(): an interrupted join() leaves the thread marked as ended.
        self._ended_event = threading.Event()
        self._ended = ended
        InheritableThread(target=self._run, name="hvd-spark-job", daemon=True).start()

    def _run(self) -> None:
        try:
            self._context.addJobTag(self._tag)
            self._context.setInterruptOnCancel(True)
            places = self._context.parallelize(range(self._num_tasks), self._num_tasks)
            places = places.barrier() if self._barrier else places
            self.value = places.mapPartitions(self._task).collect()
        except BaseException as error:
            self.error = error
        finally:
            self._ended_event.set()
            self._ended()

    @property
    def has_ended(self) -> bool:
        return self._ended_event.is_set()

    def follow(self, store: StoreClient, begin_s: float | None) -> None:
        """Waits for the end. Cancels the stage if its tasks do not begin in time, and after an interrupt."""
        until = None if begin_s is None else time.monotonic() + begin_s
        with contextlib.ExitStack() as stack:
            stack.callback(self.cancel)
            while not self._ended_event.wait(_LOOK_S):
                if until is not None and time.monotonic() >= until:
                    if reported_begin(store) is None:
                        raise TimeoutError(
                            f"The {self._num_tasks} tasks of the job did not begin within {begin_s:g} s: a barrier stage "
                            "waits until as many slots are free at the same time. Other jobs of this Spark application "
                            "may hold them. More time: start_timeout, or HOROVOD_SPARK_START_TIMEOUT."
                        )
                    until = None
            stack.pop_all()

    def finish(self, seconds: float) -> None:
        """Waits so long for the end of the tasks, and cancels them then."""
        if not self._ended_event.wait(seconds):
            self.cancel()

    def cancel(self) -> None:
        """Ends the tasks, and waits until they have ended."""
        self.cancelled = True
        until = time.monotonic() + _CANCEL_S
        while not self._ended_event.is_set() and time.monotonic() < until:
            with contextlib.suppress(Exception):  # the session may be stopping
                # Again and again: a job that has not been submitted yet is not found.
                self._context.cancelJobsWithTag(self._tag)
            self._ended_event.wait(1.0)


def shortened(error: BaseException) -> BaseException:
    """The exception of a task that failed before it had a rank; Spark's own error, for another reason of Spark's."""
    found = _OF_A_TASK.search(str(error))
    if found is None:
        return error
    return RuntimeError(f"a task failed before its rank began: {found[1].strip()}")


def lost_executor(error: BaseException) -> str | None:
    """Which executor was lost and why, if that made the stage fail."""
    found = _LOST.search(str(error))
    return None if found is None else f"{found[1]}. {(found[2] or '').strip()}".rstrip()


def forget(sent: Any) -> None:
    """Drops a broadcast value."""
    with contextlib.suppress(Exception):  # the session may have ended
        sent.destroy()
