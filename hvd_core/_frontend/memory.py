"""Memory for front ends: windows that the ranks of a host share, and device types that no backend of the job serves.

Tensors of the latter a front end copies through host memory, unless a setting forbids that. The engine notes these
operations (`TensorRef.staged_from`, `hvd_fe_call.staged_from`); hvd.backend_report() lists them. Any thread that holds
the GIL.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hvd_core._config.hints import pip_install
from hvd_core._runtime import current_job

if TYPE_CHECKING:
    import numpy as np


def shared_array(core: Any, shape: Sequence[int], dtype: int, process_set: int) -> tuple[np.ndarray, str]:
    """An array in memory that the ranks share, and why it is an ordinary one ("" if the ranks share it).

    A collective call of all ranks of the set. The reason is "" too in a set of one rank, which has no other to share
    with.

    Args:
        core: the engine.
        shape, dtype: of the array; dtype is the engine's number. Equal on all ranks.
        process_set: the engine's number of the set.
    """
    handle = core.create_window(list(shape), dtype, process_set)
    try:
        core.wait(handle)
        alone = len(core.process_sets()[process_set]) == 1
        why = "" if alone else core.no_window(handle)
        return core.output_array(handle, 0), why
    finally:
        core.release(handle)


_log = logging.getLogger("horovod")
_warned: set[str] = set()


def refusal(device_type: str) -> str:
    """The text of the ValueError for a tensor on a device of this type, if a setting forbids to copy it through host
    memory; "" if no setting does. Raises ValueError before init()."""
    job = current_job.get()
    named = job.plan.named_for_devices
    if not named:
        return ""
    return (
        f"{job.engine.why_not_served(device_type)}\n  {named}, so the tensor is not copied through host memory in its "
        "place. To allow that, unset the variable."
    )


def warn_once(device_type: str) -> None:
    """Log a warning that the tensors of a device type are copied through host memory: once per process and type."""
    if device_type in _warned:
        return
    _warned.add(device_type)
    note = current_job.get().backends.why_not(device_type)
    _log.warning(
        "horovod: no backend serves tensors on device type '%s' in this job, so they are copied through host memory "
        "(STAGED), which is slower.%s\n  fix: %s, on all hosts",
        device_type,
        f"\n  why: {note}." if note else "",
        remedy(device_type),
    )


def remedy(device_type: str) -> str:
    """The instruction that makes a backend serve a device type, such as the command that installs a wheel."""
    from hvd_core._config import plugins_toml

    with suppress(ValueError, OSError):
        wheel = plugins_toml.wheel_for_device(device_type)
        if wheel:
            return pip_install(wheel)
    return "install the backend wheel of the device's vendor, if there is one"
