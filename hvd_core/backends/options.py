"""Options of backends: plugins.toml's are handed on as environment variables, and what is set is held against the schema.

Option ``opt`` of backend ``x`` is HOROVOD_BACKEND_X_OPT, for the backend and for whoever sets it. A variable that is set
goes before the files. Called by the thread that chooses, before the backend is asked anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

from hvd_core.backends.messages import did_you_mean, option_variable
from hvd_core.backends.plan import Usable
from hvd_core.config.plugins_model import BackendSettings, Value

LIBRARY = {
    "name": "library",
    "type": "str",
    "fallback": "",
    "range": "name or path",
    "doc": "The vendor's library, where the backend would not find it.",
}
"""The option that every backend has."""
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

# Variables that this process has set from a file, with the file and line.
_handed_on: dict[str, tuple[str, str]] = {}


def export(name: str, settings: BackendSettings, environ: MutableMapping[str, str]) -> None:
    """Set what the files say about a backend, only where it is unset."""
    values = {option_variable(name, key): value for key, value in settings.options.items()}
    if settings.library is not None:
        values[option_variable(name, "library")] = settings.library
    for key, value in {**values, **settings.env}.items():
        text = _text(value.value)
        ours = key in _handed_on and _handed_on[key][0] == environ.get(key)
        if key not in environ or ours:
            environ[key] = text
            _handed_on[key] = (text, value.source)


def origin(key: str, environ: Mapping[str, str]) -> str:
    """Who has set a variable: the file and line that it comes from, or the variable's name."""
    text, source = _handed_on.get(key, (None, ""))
    return source if text is not None and environ.get(key) == text else key


def check(
    backends: Iterable[Usable],
    environ: Mapping[str, str],
    names: Callable[[], Iterable[str]] = tuple,
    config: Any = None,
) -> None:
    """Hold the options that are set for the chosen ``backends`` against their schemas. ``names``: all backends that are
    known, because HOROVOD_BACKEND_A_B_C may be one of backend a's or one of a_b's; asked only when that matters.

    Raises ValueError that lists everything that is wrong, with the nearest name.
    """
    problems: list[str] = []
    for backend in backends:
        if not backend.options and backend.origin.startswith("HOROVOD_BACKEND_PATH_"):
            continue  # under development: it may read options that it does not declare yet
        own = option_variable(backend.name, "")
        schema = {option_variable(backend.name, o["name"]): o for o in (*backend.options, LIBRARY)}
        mine = sorted(key for key in environ if key.startswith(own))
        if any(key not in schema for key in mine):
            longer = tuple(
                p for p in (option_variable(n, "") for n in names()) if p.startswith(own) and p != own
            )
            mine = [key for key in mine if not key.startswith(longer)]
        for key in mine:
            problems += _problem(backend, schema, key, environ[key], origin(key, environ))
        settings: BackendSettings | None = config.backend(backend.name) if config is not None else None
        for option, value in (settings.options if settings else {}).items():
            key = option_variable(backend.name, option)
            if (
                origin(key, environ) != value.source
            ):  # the environment goes first; the file must be right all the same
                problems += _problem(backend, schema, key, _text(value.value), value.source)
    if problems:
        raise ValueError("\n".join(problems))


def _problem(
    backend: Usable, schema: Mapping[str, dict[str, Any]], key: str, text: str, source: str
) -> list[str]:
    option = key.removeprefix(option_variable(backend.name, "")).lower()
    from_file = source != key
    where = f"{source}: option '{option}'" if from_file else key
    if key not in schema:
        names = [o["name"] for o in schema.values()]
        near = did_you_mean(option, names)
        if near and not from_file:
            near = did_you_mean(key, list(schema))
        return [
            f"horovod: {where}: backend '{backend.name}' ({backend.origin}) has no option '{option}'.{near}\n"
            f"  options: {', '.join(names)}        show: hvd plugin show {backend.name}"
        ]
    rule = schema[key]
    wanted = fault(rule, text)
    if wanted is None:
        return []
    return [
        f"horovod: {where} of backend '{backend.name}' must be {wanted}, but is '{text}'.\n"
        f"  meaning: {rule['doc']}        default: {rule['fallback'] or 'empty'}"
    ]


def fault(rule: Mapping[str, Any], text: str) -> str | None:
    """What an option's text should be and is not; None when it is good. ``rule``: one dict of a schema."""
    kind, limits, text = rule["type"], rule["range"], text.strip()
    if not text:
        return None  # as good as unset
    if kind == "bool":
        return None if text.lower() in _TRUE + _FALSE else "0 or 1"
    if kind == "enum":
        words = [w.strip() for w in re.split(r"[,|]", limits) if w.strip()]
        return (
            None if not words or text.lower() in [w.lower() for w in words] else f"one of {', '.join(words)}"
        )
    if kind not in ("int", "size", "float"):
        return None
    number = _number(kind, text)
    low, high = _limits(limits)
    if number is not None and (low is None or number >= low) and (high is None or number <= high):
        return None
    what = {"int": "a whole number", "size": "a size such as 4096 or 64KiB", "float": "a number"}[kind]
    if low is not None and high is not None:
        return f"{what} from {_plain(low)} to {_plain(high)}"
    return what + (f" of at least {_plain(low)}" if low is not None else "")


def _number(kind: str, text: str) -> float | None:
    try:
        if kind == "float":
            return float(text)
        if kind == "int":
            return int(text, 10)
    except ValueError:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    # Powers of 1024 for every spelling, as it is with memory.
    return int(found[1]) * 1024 ** "kmgt".index(found[2].lower()) * 1024 if found[2] else int(found[1])


def _limits(text: str) -> tuple[float | None, float | None]:
    low, dots, high = text.partition("..")
    if not dots:
        return None, None
    return _bound(low), _bound(high)


def _bound(text: str) -> float | None:
    number = _number("size", text.strip())
    if number is not None:
        return number
    try:
        return float(text)
    except ValueError:
        return None


def _plain(number: float) -> str:
    return f"{number:g}" if number != int(number) else str(int(number))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


__all__ = ["LIBRARY", "Value", "check", "export", "fault", "origin"]
