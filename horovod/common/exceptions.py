"""The exceptions of Horovod's public API.

The classes live in ``hvd_core.errors`` because the engine raises them; programs import them from here.
"""

from hvd_core.errors import (
    HorovodInternalError,
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
    JobEndedError,
    OperationFailedError,
    ProcessSetRemovedError,
)

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "JobEndedError",
    "OperationFailedError",
    "ProcessSetRemovedError",
    "get_version_mismatch_message",
]


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The text of a HorovodVersionMismatchError."""
    return (
        f"Framework {name} installed with version {installed_version} but found version {version}.\n"
        "This can result in unexpected behavior including runtime errors. "
        "Reinstall hvd-core next to the framework version that is in use."
    )
