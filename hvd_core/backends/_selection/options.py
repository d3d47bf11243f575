"""Options of backends: sets those of plugins.toml as environment variables, and checks all set options against the
schema.

Option ``opt`` of backend ``x`` is the variable HOROVOD_BACKEND_X_OPT, for users and for the backend. A variable that is
set already wins over the files. Called on the thread that chooses, before the backend is described.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

from hvd_core._config.hints import did_you_mean
from hvd_core._config.plugins_toml import BackendSettings, Value
from hvd_core.backends._messages import option_variable
from hvd_core.backends._options import fault
from hvd_core.backends._selection.plan import Usable

__all__ = ["LIBRARY", "Value", "check", "export", "found_by_probe", "origin"]


LIBRARY = {
    "name": "library",
    "type": "str",
    "fallback": "",
    "range": "name or path",
    "doc": "The vendor's library, where the backend would not find it.",
}
"""The option that every backend has."""

# Variable -> (text, file and line), for the variables that this process has set from a file.
_handed_on: dict[str, tuple[str, str]] = {}


def export(name: str, settings: BackendSettings, environ: MutableMapping[str, str]) -> None:
    """Set the files' settings of a backend as variables in ``environ``, unless a variable is set already."""
    values = {option_variable(name, key): value for key, value in settings.options.items()}
    if settings.library is not None:
        values[option_variable(name, "library")] = settings.library
    for key, value in {**values, **settings.env}.items():
        text = _text(value.value)
        ours = key in _handed_on and _handed_on[key][0] == environ.get(key)
        if key not in environ or ours:
            environ[key] = text
            _handed_on[key] = (text, value.source)


def found_by_probe(name: str, library: str, environ: MutableMapping[str, str]) -> None:
    """Give the backend the vendor's library that its probe has found, unless the user has named one."""
    key = option_variable(name, "library")
    if library and key not in environ:
        environ[key] = library
        _handed_on[key] = (library, "its probe")


def origin(key: str, environ: Mapping[str, str]) -> str:
    """The source of a variable's value: file and line if export() has set it, else the variable's name."""
    text, source = _handed_on.get(key, (None, ""))
    return source if text is not None and environ.get(key) == text else key


def check(
    backends: Iterable[Usable], environ: Mapping[str, str], names: Callable[[], Iterable[str]] = tuple
) -> None:
    """Check the options that are set for the chosen ``backends`` against their schemas.

    ``names``: returns the names of all known backends, because HOROVOD_BACKEND_A_B_C may be an option of backend a or of
    backend a_b; called only if that matters.

    Raises ValueError for the first fault, with the nearest valid name.
    """
    for backend in backends:
        if not backend.options and backend.origin.startswith("HOROVOD_BACKEND_PATH_"):
            continue  # a library under development may read options that it does not declare yet
        own = option_variable(backend.name, "")
        schema = {option_variable(backend.name, o["name"]): o for o in (*backend.options, LIBRARY)}
        mine = sorted(key for key in environ if key.startswith(own))
        if any(key not in schema for key in mine):
            others = (option_variable(name, "") for name in names())
            longer = tuple(other for other in others if other.startswith(own) and other != own)
            mine = [key for key in mine if not key.startswith(longer)]
        for key in mine:
            _check_option(backend, schema, key, environ[key], origin(key, environ))


def _check_option(
    backend: Usable, schema: Mapping[str, dict[str, Any]], key: str, text: str, source: str
) -> None:
    option = key.removeprefix(option_variable(backend.name, "")).lower()
    where = key if source == key else f"{source}: option '{option}'"
    if key not in schema:
        names = [o["name"] for o in schema.values()]
        near = did_you_mean(option, names)
        raise ValueError(
            f"horovod: {where}: backend '{backend.name}' ({backend.origin}) has no option '{option}'.{near}\n"
            f"  options: {', '.join(names)}        show: hvd plugin show {backend.name}"
        )
    rule = schema[key]
    if wanted := fault(rule, text):
        raise ValueError(
            f"horovod: {where} of backend '{backend.name}' must be {wanted}, but is '{text}'.\n"
            f"  meaning: {rule['doc']}        default: {rule['fallback'] or 'empty'}"
        )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
