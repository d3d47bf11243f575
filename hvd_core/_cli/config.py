"""``hvd config --explain``: all settings of a job started here, with their sources, and the backends it would choose."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hvd_core._cli import output
from hvd_core._cli.examination import config, run_sandboxed
from hvd_core.backends._messages import option_variable
from hvd_core.backends.errors import BackendError

if TYPE_CHECKING:
    from hvd_core._config.plugins_toml import PluginsConfig

_DEFAULT = "default"
Row = tuple[str, str, str]  # key, value, source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--explain", action="store_true", help="with the source of each value (the default)")
    output.add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print the settings. Returns FINDINGS if the choice of backends would fail. Raises PluginsTomlError."""
    settings = config()
    rows = [*choices(settings), *of_files(settings), *of_engine()]
    table, note, fault = _choice(settings)
    if options.json:
        output.document(
            {
                "files": [{"kind": file.kind, "path": str(file.path)} for file in settings.files],
                "settings": [dict(zip(("key", "value", "source"), row)) for row in rows],
                "choice": table,
                "note": note,
                "fault": fault,
            }
        )
    else:
        _print(settings, rows, table, note, fault)
    return output.FINDINGS if fault else output.OK


def choices(settings: PluginsConfig) -> Iterator[Row]:
    """The rules that name backends, the strongest level first, without those that a stronger level hides."""
    from hvd_core._config.selection_rules import ladder

    named = False
    for level in ladder(os.environ, None, settings.levels()):
        for rule in level.rules:
            named = True
            device = {None: "any device", "*": "any device but the host"}.get(rule.device, rule.device)
            yield (
                f"backend for {device}, {rule.operation or 'all operations'}",
                ", ".join(rule.names),
                rule.source,
            )
    if not named:
        yield "backend", "automatic", _DEFAULT
    for file in settings.files:
        for key, value in (("allow", file.allow), ("deny", file.deny)):
            if value is not None:
                yield key, ", ".join(value.value) or "none", value.source


def of_files(settings: PluginsConfig) -> Iterator[Row]:
    """The other settings of plugins.toml. The environment wins over options, library and env."""
    timeout = next((file.probe_timeout_s for file in settings.files if file.probe_timeout_s), None)
    yield "probe.timeout_s", f"{settings.probe_timeout_s:g}", timeout.source if timeout else _DEFAULT
    yield "affinity.mode", settings.affinity_mode.value, settings.affinity_mode.source
    for name in sorted({name for file in settings.files for name in file.backends}):
        found = settings.backend(name)
        if found.distribution is not None:
            yield f"backend.{name}.distribution", found.distribution.value, found.distribution.source
        variables = {option_variable(name, key): (f"options.{key}", v) for key, v in found.options.items()}
        if found.library is not None:
            variables[option_variable(name, "library")] = ("library", found.library)
        variables |= {key: (f"env.{key}", value) for key, value in found.env.items()}
        for variable, (key, setting) in variables.items():
            if variable in os.environ:
                yield (
                    f"backend.{name}.{key}",
                    os.environ[variable],
                    f"{variable}, instead of {setting.source}",
                )
            else:
                yield f"backend.{name}.{key}", str(setting.value), setting.source
    for variable, value in sorted(os.environ.items()):
        if variable.startswith("HOROVOD_BACKEND_"):
            yield variable, value, "environment"


def of_engine() -> Iterator[Row]:
    """The engine's own settings, all from the environment. Raises ValueError if a value is not valid."""
    from hvd_core._config.settings import LOG_LEVELS, read_environment, variable_of

    for key, value in asdict(read_environment()).items():
        if key == "log_level":
            value = LOG_LEVELS[value]
        variable = variable_of(key)
        yield (
            key,
            "unset" if value is None or value == "" else str(value),
            variable if os.environ.get(variable) else _DEFAULT,
        )


def _choice(settings: PluginsConfig) -> tuple[list[dict[str, Any]], str, str]:
    """The choice of a job of one process: (rows of the report, its note, the error or ""). A sandbox makes it,
    because it runs the code of the chosen plugins."""
    from hvd_core.backends._selection.usable import limits

    done = run_sandboxed(_choose, limits(settings.probe_timeout_s))
    done.relay_output()
    if done.fault:
        name = f"backend '{done.subject}': " if done.subject else ""
        check = f"\n  check: hvd plugin doctor {done.subject}" if done.subject else ""
        return [], "", f"horovod: {name}{done.describe()}{check}"
    table, note, fault = done.values[0]
    return table, note, fault


def _choose(send: Callable[[Any], None]) -> None:
    from hvd_core.backends._selection.job import report_now

    try:
        report = report_now(None)
    except (BackendError, ValueError) as error:
        send(([], "", str(error)))
    else:
        note = f"{report.note}; {report.unserved}" if report.note else ""
        send(([asdict(row) for row in report], note, ""))


def _print(
    settings: PluginsConfig, rows: list[Row], table: list[dict[str, Any]], note: str, fault: str
) -> None:
    output.table(("file", ""), [(file.kind, str(file.path)) for file in settings.files])
    output.text("")
    output.table(("setting", "value", "from"), rows, {_DEFAULT: "dim"})
    output.text("")
    if fault:
        output.text("a job started here would stop:", "", fault)
        return
    cells = [
        (
            *(r["operation"], r["device"], f"{r['backend']} {r['version']}"),
            r["support"],
            str(r["score"]),
            r["source"],
        )
        for r in table
    ]
    output.table(("a job here", "device", "backend", "float32", "score", "from"), cells)
    if note:
        output.text(f"other device types: {note}")
