"""The phase load: from a chosen backend to the facts in its tables, with messages that say whose library failed.

The compiled loader knows a path and a reason; whose wheel that is, where was searched and what helps is added here.
Loads for good. Any thread; may run the backend's own code for as long as it takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_core.backends import messages
from hvd_core.backends.candidate import WHEEL
from hvd_core.backends.errors import BackendError, BackendLoadError, BackendOpenError, BackendUnavailable

if TYPE_CHECKING:
    from hvd_core.backends.installed_backend import InstalledBackend


def load(backend: InstalledBackend, alone: bool = False, alternative: str = "") -> dict[str, Any]:
    """What hvd_core._core.inspect_backend() says of the backend's library, which is loaded by that. ``alone`` and
    ``alternative``: as in messages.unavailable().

    Raises BackendDescribeError, BackendLoadError, BackendUnavailable when the library itself says that it cannot work
    here (its vendor's library or its device is missing).
    """
    from hvd_core._core import inspect_backend

    path = str(backend.path())
    try:
        return inspect_backend(backend.name, path)
    # What the compiled part said is all in the new text, so the chain would only repeat it.
    except BackendLoadError as error:
        raise BackendLoadError(explain(backend, path, str(error))) from None
    except BackendOpenError as error:
        raise _refused(backend, path, str(error), alone, alternative) from None


def explain(backend: InstalledBackend, path: str, text: str) -> str:
    """The compiled loader's message with what it does not know: wheel, version, searched places, needs, fix."""
    head, cause, fix = _parts(text)
    if "needs backend ABI" in head:
        return _about_abi(backend, head)
    if not cause:
        return text
    # Only the dynamic loader's reasons have to do with places; the handshake's are the library's own.
    places = ""
    if "cannot open shared object" in cause or "undefined symbol" in cause or "not found" in cause:
        from hvd_core.backends.diagnosis import searched

        places = "        searched: " + ", ".join(searched(Path(path)))
        fix = (
            _probe_fix(backend)
            or f"install what it needs, or name its folder in {messages.ways_to_point(backend.name)}"
        )
    requires = backend.descriptor.requires if backend.descriptor else ()
    needs = f"needs: {', '.join(requires)}        " if requires else ""
    return (
        f"horovod: backend '{backend.name}' ({backend.origin}) failed to load.\n"
        f"  cause: {cause}{places}\n"
        f"  {needs}fix: {fix}        check: hvd plugin doctor {backend.name}"
    )


def _refused(backend: InstalledBackend, path: str, text: str, alone: bool, alternative: str) -> BackendError:
    """A library that opened, and whose entry function said no."""
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
    from hvd_core.backends.descriptor import Unavailable

    answer = backend.probe()
    return answer.fix if isinstance(answer, Unavailable) else ""


def _about_abi(backend: InstalledBackend, head: str) -> str:
    from hvd_core.version import __version__

    head = head.replace("this hvd-core offers", f"this hvd-core {__version__} offers")
    head = head.replace(
        f"backend '{backend.name}' needs", f"backend '{backend.name}' ({backend.origin}) needs"
    )
    if backend.candidate.origin == WHEEL:
        head = head.replace(
            "install a newer release of the backend", f"pip install -U {backend.candidate.distribution}"
        )
    return head


def _parts(text: str) -> tuple[str, str, str]:
    """(first line, cause, fix) of the compiled loader's message."""
    head, _, rest = text.partition("\n  cause: ")
    cause, _, fix = rest.partition("\n  fix: ")
    return head, cause, fix
