"""The phase load: reads the facts in a chosen backend's tables, and explains a failure in terms of its wheel.

The compiled loader knows the path and the reason. This module adds the wheel, the searched folders and the fix. A loaded
library stays loaded. Any thread. May run the backend's own code, without a time limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvd_core._config.wheels import pip_install
from hvd_core.backends import messages, phases
from hvd_core.backends.candidate import WHEEL
from hvd_core.backends.descriptor import Unavailable
from hvd_core.backends.discovery.installed_backend import InstalledBackend
from hvd_core.backends.errors import BackendError, BackendLoadError, BackendOpenError, BackendUnavailable
from hvd_core.version import __version__


def load(backend: InstalledBackend, alone: bool = False, alternative: str = "") -> dict[str, Any]:
    """Load the backend's library and return the result of hvd_core._core.inspect_backend(). ``alone`` and
    ``alternative``: as in messages.unavailable().

    Raises BackendDescribeError, BackendLoadError, and BackendUnavailable when the library itself reports that it cannot
    work here (its vendor's library or its device is missing).
    """
    from hvd_core._core import inspect_backend  # the compiled engine; discovery alone does without it

    path = str(backend.path())
    try:
        with phases.running(backend.name, phases.LOAD):
            return inspect_backend(backend.name, path)
    # The new text repeats everything that the compiled part said, so the chain would show it twice.
    except BackendLoadError as error:
        raise BackendLoadError(explain(backend, path, str(error))) from None
    except BackendOpenError as error:
        raise _refused(backend, path, str(error), alone, alternative) from None


def explain(backend: InstalledBackend, path: str, text: str) -> str:
    """The compiled loader's message ``text`` with wheel, version, searched folders, requirements and fix added."""
    head, cause, fix = _parts(text)
    if "needs backend ABI" in head:
        return _about_abi(backend, head)
    if not cause:
        return text
    # Folders matter for the dynamic loader's reasons only; the handshake's reasons concern the library itself.
    places = ""
    if "cannot open shared object" in cause or "undefined symbol" in cause or "not found" in cause:
        from hvd_core.backends.discovery.diagnosis import searched  # subprocess, json: for this failure only

        places = "        searched: " + ", ".join(searched(Path(path)))
        fix = (
            _probe_fix(backend)
            or f"install what it needs, or name its folder in {messages.library_settings(backend.name)}"
        )
    requires = backend.descriptor.requires if backend.descriptor else ()
    needs = f"needs: {', '.join(requires)}        " if requires else ""
    return (
        f"horovod: backend '{backend.name}' ({backend.origin}) failed to load.\n"
        f"  cause: {cause}{places}\n"
        f"  {needs}fix: {fix}        check: hvd plugin doctor {backend.name}"
    )


def _refused(backend: InstalledBackend, path: str, text: str, alone: bool, alternative: str) -> BackendError:
    """The error for a library that opened and whose entry function returned an error."""
    reason = text.removeprefix(f"{backend.name}: load: ")
    if reason.endswith(" (UNAVAILABLE)"):
        reason = reason.removesuffix(" (UNAVAILABLE)")
        requires = backend.descriptor.requires if backend.descriptor else ()
        fix = _probe_fix(backend) or (f"have what it needs: {', '.join(requires)}" if requires else "")
        return BackendUnavailable(messages.unavailable(backend.name, reason, fix, alone, alternative))
    return BackendLoadError(
        explain(
            backend,
            path,
            f"horovod: backend\n  cause: its entry function says: {reason}\n  fix: see its manual",
        )
    )


def _probe_fix(backend: InstalledBackend) -> str:
    answer = backend.probe()
    return answer.fix if isinstance(answer, Unavailable) else ""


def _about_abi(backend: InstalledBackend, head: str) -> str:
    head = head.replace("this hvd-core offers", f"this hvd-core {__version__} offers")
    head = head.replace(
        f"backend '{backend.name}' needs", f"backend '{backend.name}' ({backend.origin}) needs"
    )
    head = head.replace("install a newer hvd-core", pip_install("hvd-core", "-U"))
    if backend.candidate.origin == WHEEL:
        newer = pip_install(str(backend.candidate.distribution), "-U")
        head = head.replace("install a newer release of the backend", newer)
    return head


def _parts(text: str) -> tuple[str, str, str]:
    """(first line, cause, fix) of the compiled loader's message."""
    head, _, rest = text.partition("\n  cause: ")
    cause, _, fix = rest.partition("\n  fix: ")
    return head, cause, fix
