"""A backend that can be selected, with the properties that the selection needs.

This class holds constants. In the subclasses a property may import the plugin's module (wheel_backend.py) or load a
library (local_backends.py). The list of backends is in registry.py and search.py. Any thread.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path

from hvd_core._config.wheels import pip_install
from hvd_core.backends.candidate import EMBEDDED, Candidate
from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable
from hvd_core.backends.errors import BackendError, BackendLoadError

# The ABI that this engine offers; tests/discovery compares it with the header.
ABI = (1, 1)


class InstalledBackend:
    """A backend that can be selected; all properties of this class are known without importing a plugin.

    ``devices``: the device types whose memory it serves ("cpu" is host memory). ``provides``: its tables, "device" and
    "comm". ``spans_hosts``: whether one communicator can reach ranks on several hosts. ``automatic``: whether it may be
    chosen when no name is given; the backend of highest ``priority`` is tried first. ``origin``: where it comes from, in
    the words of the messages. ``descriptor``: None if the backend has no descriptor.
    """

    descriptor: BackendDescriptor | None = None
    encrypts = False
    """Whether it encrypts what it sends to other hosts when HOROVOD_TLS=1 asks for it."""
    launchers: tuple[str, ...] = ()
    """The launchers whose jobs it belongs to (BackendDescriptor.launchers)."""

    def __init__(
        self,
        name: str,
        library: str,
        origin: str,
        spans_hosts: bool,
        automatic: bool,
        devices: tuple[str, ...] = ("cpu",),
        provides: frozenset[str] = frozenset({"device", "comm"}),
        priority: int = 50,
        version: str = "",
        candidate: Candidate | None = None,
    ) -> None:
        self.name, self.library, self.origin = name, library, origin
        self.spans_hosts, self.automatic, self.priority = spans_hosts, automatic, priority
        self.devices, self.provides, self.version = devices, provides, version
        self.candidate = candidate or Candidate(name, EMBEDDED)

    def path(self) -> str | Path:
        """The absolute path of the library, for the engine's loader. Raises BackendLoadError if the file is missing."""
        roots = _package_roots()
        for root in roots:
            library = root / self.library
            if library.is_file():
                return library.resolve()
        searched = ", ".join(str(root / self.library) for root in roots)
        raise BackendLoadError(
            f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
            f"  cause: its library is not in this installation        searched: {searched}\n"
            "  fix: build it in a source tree, or reinstall hvd-core: "
            + pip_install("hvd-core", "--force-reinstall", "--no-deps")
        )

    def probe(self, timeout_s: float = 5.0) -> Available | Unavailable:
        """Whether the backend works on this machine. Waits at most ``timeout_s`` seconds."""
        return Available()

    def fault(self) -> BackendError | None:
        """The error that prevents reading the properties, or None. Code that goes through backends without a request by
        name calls this first, so that one broken package does not hide the others."""
        try:
            _ = self.devices
        except BackendError as error:
            return error
        return None

    def __repr__(self) -> str:
        return f"<backend {self.name} ({self.origin})>"


def _package_roots() -> list[Path]:
    # An editable install keeps sources in one folder and built files in another; both are on the package's
    # path, or at least in site-packages.
    roots = [Path(p) for p in getattr(sys.modules.get("hvd_core"), "__path__", ())]
    return list(dict.fromkeys([*roots, *_own_roots()]))


@functools.cache
def _own_roots() -> tuple[Path, Path]:
    return Path(__file__).resolve().parents[2], Path(sysconfig.get_path("platlib")) / "hvd_core"
