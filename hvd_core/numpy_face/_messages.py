"""Messages from one rank to another one: send and receive. These two ranks alone take part. Any thread may call."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_core._frontend.operations import request_name
from hvd_core._runtime.current_job import engine
from hvd_core._runtime.process_sets import ProcessSet
from hvd_core._runtime.refusals import report_message
from hvd_core.numpy_face._handles import contiguous_array_of, keep, number_of, synchronize


def _message(tensor: Any, sends: bool, other: int, name: str | None, process_set: ProcessSet | None) -> int:
    try:
        full_name = request_name("send", name)
        array = contiguous_array_of(tensor) if sends else tensor
        number = number_of(process_set)
    except BaseException as error:
        if isinstance(error, Exception):
            engine()  # a missing init() is the better message
        report_message(sends, other, name, process_set, error, "send")
        raise
    return keep(
        engine().message(array, sends, other, full_name, number), "ready", None if sends else array, array
    )


def send_async(tensor: Any, dst: int, name: str | None = None, process_set: ProcessSet | None = None) -> int:
    """Start to send an array to rank ``dst``. Returns a handle."""
    return _message(tensor, True, dst, name, process_set)


def send(tensor: Any, dst: int, name: str | None = None, process_set: ProcessSet | None = None) -> None:
    """Send an array to rank ``dst`` (its rank in the job, also within a process set), which calls recv().

    Without a name, the n-th send() to a rank meets the n-th recv() there from this one. Waits until the message has
    arrived. A join() comes after the messages that were sent before it.
    """
    synchronize(send_async(tensor, dst, name, process_set))


def recv_async(
    tensor: np.ndarray, src: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start to receive an array from rank ``src``, in place. Returns a handle."""
    return _message(tensor, False, src, name, process_set)


def recv(
    tensor: np.ndarray, src: int, name: str | None = None, process_set: ProcessSet | None = None
) -> np.ndarray:
    """Overwrite the array with the one that rank ``src`` sends, of the same shape and dtype; see send()."""
    return synchronize(recv_async(tensor, src, name, process_set))
