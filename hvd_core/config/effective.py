"""Every setting about backends with its value and who set it, for ``hvd plugin config --explain``. Any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hvd_core.backends.options import origin
from hvd_core.backends.rules import ACCELERATORS, VARIABLE, Level, Rule, legacy, parse
from hvd_core.config.plugins_toml import FILE_VARIABLE, SITE_FILE, PluginsConfig, load

_PREFIX = "HOROVOD_BACKEND_"

Row = tuple[str, str, str]


def effective_config(environ: Mapping[str, str], site: Path = SITE_FILE) -> list[Row]:
    """Rows (key, value, source), strongest first where a key stands in several places; those below say what hides them.
    Keys are plugins.toml's; a source is file:line, ``environment NAME`` or ``default``. Options of backends that only the
    environment sets come under their variables' names.

    Raises ValueError, PluginsTomlError among them, for what cannot be read.
    """
    config = load(environ, site)
    rows = [("files", str(file.path), f"{file.kind} file") for file in config.files]
    if environ.get(FILE_VARIABLE):
        rows[0] = (rows[0][0], rows[0][1], f"user file, environment {FILE_VARIABLE}")
    rows += _selection(environ, config)
    rows += _policy(config)
    rows += _backends(environ, config)
    rows += _variables(environ, config)
    rows.append(("probe.timeout_s", f"{config.probe_timeout_s:g}", _source_of(config, "probe_timeout_s")))
    rows.append(("affinity.mode", config.affinity_mode.value, config.affinity_mode.source))
    return rows + [
        (f"wheels.{name}", wheel, str(f.path)) for f in config.files for name, wheel in f.wheels.items()
    ]


def _selection(environ: Mapping[str, str], config: PluginsConfig) -> Iterator[Row]:
    named = environ.get(VARIABLE, "")
    levels = [
        Level(VARIABLE, parse(named, VARIABLE) if named.strip() else ()),
        legacy(environ),
        *config.levels(),
    ]
    seen: dict[str, str] = {}
    broad = ""
    for level in levels:
        for rule in level.rules:
            key = _key(rule)
            source = rule.source if ":" in rule.source else f"environment {rule.source}"
            by = seen.get(key) or (broad if rule.broad else "")
            yield key, ", ".join(rule.names), source + (f" (hidden by {by})" if by else "")
            seen.setdefault(key, source)
        if not broad:
            broad = next((seen[_key(r)] for r in level.rules if r.device is None), "")
    if not seen:
        yield "selection.backend", "automatic", "default"


def _key(rule: Rule) -> str:
    if rule.device is None:
        return "selection.backend"
    device = "(accelerators)" if rule.device == ACCELERATORS else rule.device
    return f"selection.{device}.{rule.operation or 'operations'}"


def _policy(config: PluginsConfig) -> Iterator[Row]:
    for file in config.files:
        for key, value in (("allow", file.allow), ("deny", file.deny)):
            if value is not None:
                yield f"selection.{key}", ", ".join(value.value) or "none", value.source


def _backends(environ: Mapping[str, str], config: PluginsConfig) -> Iterator[Row]:
    from hvd_core.backends.messages import option_variable

    for name in dict.fromkeys(n for f in config.files for n in f.backends):
        found = config.backend(name)
        values = {f"options.{k}": (option_variable(name, k), v) for k, v in found.options.items()}
        values |= {f"env.{k}": (k, v) for k, v in found.env.items()}
        if found.library is not None:
            values["library"] = (option_variable(name, "library"), found.library)
        if found.distribution is not None:
            yield f"backend.{name}.distribution", str(found.distribution.value), found.distribution.source
        for key, (variable, value) in sorted(values.items()):
            full = f"backend.{name}.{key}"
            if variable in environ and origin(variable, environ) == variable:
                yield full, environ[variable], f"environment {variable}"
                yield full, str(value.value), f"{value.source} (hidden by environment {variable})"
            else:
                yield full, str(value.value), value.source


def _variables(environ: Mapping[str, str], config: PluginsConfig) -> Iterator[Row]:
    """Options that no file speaks of."""
    from hvd_core.backends.messages import option_variable

    known = {
        option_variable(name, option)
        for file in config.files
        for name, settings in file.backends.items()
        for option in (*settings.options, "library")
    }
    for variable in sorted(environ):
        if variable.startswith(_PREFIX) and variable != f"{_PREFIX}SPEC" and variable not in known:
            yield variable, environ[variable], f"environment {variable}"


def _source_of(config: PluginsConfig, field: str) -> str:
    return next((getattr(f, field).source for f in config.files if getattr(f, field)), "default")
