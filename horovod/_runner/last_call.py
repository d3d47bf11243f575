"""What a rank did in backends when its process ended: memory that the launcher or its agent makes for each rank on its
host, and reads after the rank has failed. The rank's side, and the meaning, stand in
hvd_core/_runtime/crash_reports.py. An agent does not import that: it starts without hvd_core.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import Any

from horovod._runner.exit_codes import signal_of

_BYTES = 4096


class LastCall:
    """The memory of one rank. Raises OSError if the process has no descriptors left."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("hvd-last-call")

    def variables(self) -> dict[str, str]:
        """What the rank must find in its environment. The rank inherits no descriptor, and neither do its children."""
        return {"HOROVOD_LAST_CALL": f"/proc/{os.getpid()}/fd/{self._descriptor}"}

    def content(self) -> str:
        """The content as a text for an event; "" if the rank has noted nothing."""
        found = os.pread(self._descriptor, _BYTES, 0)
        return zlib.compress(found).hex() if found.strip(b"\0") else ""

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._descriptor)


def about_end(event: Mapping[str, Any]) -> str:
    """How a rank's process has ended, by its event "exit": ``for lack of memory, it seems: ... (cgroup limit 512 MiB)``,
    or ``in the call collective of backend 'x' (allreduce, 4096 bytes)``; "" if neither is known."""
    if event.get("out_of_memory"):
        return f"for lack of memory, it seems: the kernel has killed a process of its group ({event['out_of_memory']})"
    if not event.get("inside"):
        return ""
    from hvd_core._runtime.crash_reports import describe_last_call

    killed = signal_of(event["code"]) is not None
    return describe_last_call(zlib.decompress(bytes.fromhex(event["inside"])), killed=killed)
