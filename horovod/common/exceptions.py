"""The exceptions of Horovod's public API.

The classes live in ``hvd_core.errors`` because the engine raises them; programs import them from here.
"""

from hvd_core.errors import (
    HorovodInternalError,
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
    JobEndedError,
    NotInitializedError,
    OperationFailedError,
    ProcessSetRemovedError,
    get_version_mismatch_message,
)

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "JobEndedError",
    "NotInitializedError",
    "OperationFailedError",
    "ProcessSetRemovedError",
    "get_version_mismatch_message",
]
