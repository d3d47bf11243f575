"""The texts of errors about backends that cannot be used. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hvd_core._config.hints import did_you_mean, pip_install
from hvd_core.backends._candidate import EMBEDDED, Candidate, Problem

_LONGEST_TEXT = 1000  # characters of a plugin's exception


def list_installed(candidates: Iterable[Candidate]) -> str:
    """``shm, tcp (embedded), other (its-wheel 0.3.0)``: each name with its origin."""
    found = [c for c in candidates if not c.for_tests]
    names = [c.name for c in found if c.origin == EMBEDDED]
    parts = [f"{', '.join(names)} (embedded)"] if names else []
    parts += [f"{c.name} ({c.describe_origin()})" for c in found if c.origin != EMBEDDED]
    return ", ".join(parts) or "none"


def not_installed(
    name: str,
    source: str,
    candidates: Sequence[Candidate],
    policy: str = "",
    wheel: str | None = None,
    problems: Sequence[Problem] = (),
) -> str:
    """The text if no backend has the name.

    ``policy``: a line about the site's allow and deny. ``wheel``: the distribution that has this backend according to the
    curated list. Other names get no pip line, because it would invite strangers to publish under them. ``problems``: why
    an entry point of that name is not used.
    """
    asked = f" (from {source})" if source else ""
    # A name that is known, or that contains another one, is a name of its own and no slip.
    others = [c.name for c in candidates if not c.for_tests and c.name not in name]
    near = "" if wheel else did_you_mean(name, others)
    text = (
        f"horovod: backend '{name}'{asked} is not installed.{near}\n"
        f"  installed: {list_installed(candidates)}\n"
        "  list: hvd plugin list"
    )
    text += f"      site policy: {policy}" if policy else ""
    for problem in problems:
        text += "\n  note: " + problem.text.removeprefix("horovod: ")
    return text + (f"\n  fix: {pip_install(wheel)}" if wheel else "")


def pinned_away(name: str, source: str, pin: str, found: Sequence[Candidate]) -> str:
    """The text if wheels have the name, but none of them is the distribution that plugins.toml asks for."""
    asked = f" (from {source})" if source else ""
    return (
        f"horovod: backend '{name}'{asked} is pinned to '{pin}' in plugins.toml, and that is not installed.\n"
        f"  found: {'; '.join(c.describe_place() for c in found)}\n"
        f"  fix: install what is pinned, or correct [backend.{name}].distribution      list: hvd plugin list"
    )


def option_variable(name: str, option: str) -> str:
    """HOROVOD_BACKEND_<NAME>_<OPTION>: upper case, ``_`` for every other character."""
    text = "".join(c if c.isascii() and c.isalnum() else "_" for c in f"{name}_{option}")
    return f"HOROVOD_BACKEND_{text.upper()}"


def library_settings(name: str) -> str:
    """The settings by which a user names the folder of a library, joined for a message."""
    return f"LD_LIBRARY_PATH, {option_variable(name, 'library')} or plugins.toml [backend.{name}].library"


def sentence(text: str) -> str:
    """``text`` with a full stop, unless it ends with a question mark or an exclamation mark."""
    return text if text.endswith(("?", "!")) else f"{text.rstrip('.')}."


def unavailable(name: str, reason: str, fix: str = "", alone: bool = False, alternative: str = "") -> str:
    """The text if a probe, or the library itself, reports that the backend cannot work here. ``alone``: whether it was
    the only name given; ``alternative``: a backend that a list could add as the second name."""
    text = f"horovod: backend '{name}' is installed but unavailable here: {sentence(reason)}"
    if fix:
        text += f"\n  fix: {fix}"
    if alone:
        text += "\n  Not falling back, because it was named explicitly."
        if alternative:
            text += f" Use HOROVOD_BACKEND={name},{alternative} to allow that."
    return text


def of_exception(error: BaseException) -> str:
    """An exception of a plugin for a message: its class and its text, which no message repeats at any length. The
    exception is the plugin's code too: its text may not be readable."""
    try:
        text = str(error)
    except BaseException:
        text = "its text cannot be read"
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}... ({len(text)} characters)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def reason(error: BaseException) -> str:
    """An error in one line: its first line and, if the text has one, its cause."""
    first, *rest = str(error).splitlines() or [type(error).__name__]
    cause = next((line.removeprefix("  cause: ") for line in rest if line.startswith("  cause: ")), "")
    first = first.removeprefix("horovod: ").rstrip(".")
    return f"{first}: {cause.partition('        ')[0].rstrip('.')}" if cause else first
