"""``hvd plugin new NAME --device TYPE``: asks for missing arguments, checks the names, writes the project."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_core._cli import codes, output, project_readme, template
from hvd_core._cli.template import Names

HOST_MEMORY = "cpu"
_GITIGNORE = "build/\ndist/\n*.so\n*.egg-info/\n__pycache__/\n"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,15}")
_LEAST_ID, _MOST_ID = 128, 1 << 20
_SONAME = re.compile(r"[\w+./-]+\.so(\.\d+)*")
# HOROVOD_BACKEND_SPEC and HOROVOD_BACKEND_PATH_... have another meaning.
_TAKEN = ("spec", "path", "hvd", "horovod")
# As names of C++ namespaces they would not compile. Python's own are in the module keyword.
_CXX = ("auto", "char", "const", "default", "delete", "double", "float", "int", "long", "namespace", "new", "private",
        "public", "short", "static", "struct", "template", "this", "typedef", "union", "virtual", "void")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Write the project. Raises ValueError for invalid names, FileExistsError if the folder is not empty."""
    asking = options.device is None and _interactive()
    name = options.name or _ask("Name of the backend, such as acme", "NAME")
    check_name(name)
    device = options.device or _ask("Device type, as in tensor.to(TYPE)", "--device TYPE")
    if device == HOST_MEMORY:
        return _host(options, name)
    check_device(device)
    runtime = options.runtime or f"{name}rt"
    check_runtime(runtime, name)
    choices = _choices(options, name, asking)

    target = Path(options.directory or f"hvd-backend-{name.replace('_', '-')}")
    names = Names(name, name, device, runtime)
    readme = project_readme.text(name, device, runtime, choices)
    extra = {"README.md": readme, ".gitignore": _GITIGNORE}
    files = template.write(template.find(), names, target, choices, extra)
    steps = project_readme.first_steps(name, device, str(target), "library" in choices)
    return _done(options, target, files, "The backend works on a simulator", "the simulator", steps)


def _host(options: argparse.Namespace, name: str) -> int:
    """Write the project of a backend of host memory."""
    given = {"--library": options.library, "--runtime": options.runtime, "--id-bytes": options.id_bytes}
    for flag, value in (*given.items(), ("--store", options.store or None)):
        _require(
            value is None, flag, str(value), f"it is about devices, and --device {HOST_MEMORY} is host memory"
        )
    target = Path(options.directory or f"hvd-backend-{name.replace('_', '-')}")
    found = template.find(template.HOST)
    names = Names(name, name, found.names.device, found.names.runtime)
    extra = {"README.md": project_readme.host_text(name), ".gitignore": _GITIGNORE}
    files = template.write(found, names, target, {}, extra)
    steps = project_readme.first_steps(name, HOST_MEMORY, str(target))
    return _done(options, target, files, "The backend works over a small library", "that library", steps)


def _done(
    options: argparse.Namespace,
    target: Path,
    files: Sequence[Path],
    works: str,
    stand_in: str,
    steps: Sequence[str],
) -> int:
    if options.json:
        output.document({"directory": str(target.resolve()), "files": [str(f) for f in files]})
        return codes.OK
    print(
        f"{target}: {len(files)} files. {works}; its README.md tells how to\n"
        f"replace {stand_in} by your library. First:\n"
    )
    for line in steps:
        print(f"  {line}")
    return codes.OK


def _choices(options: argparse.Namespace, name: str, asking: bool) -> dict[str, str]:
    """The changes of the template apart from the names. Asks for those that the command line does not have."""
    library, id_bytes, store = options.library, options.id_bytes, options.store
    if asking and library is None:
        library = _ask(
            f"Your library, such as lib{name}.so.2 (empty: the simulator)", "--library", empty=True
        )
    if asking and id_bytes is None and not store:
        answer = _ask("Bytes of its unique id (empty: 128; 'store': it has no id)", "--id-bytes", empty=True)
        store = answer == "store"
        id_bytes = None if store or not answer else _number(answer)
    choices = {}
    if library:
        _require(
            _SONAME.fullmatch(library) is not None,
            "--library",
            library,
            f"it must be a soname such as lib{name}.so.2",
        )
        choices["library"] = library
    if id_bytes is not None:
        _require(_LEAST_ID <= id_bytes <= _MOST_ID, "--id-bytes", str(id_bytes),
              f"it must be between {_LEAST_ID}, which the simulator needs, and {_MOST_ID}")  # fmt: skip
        choices["id_bytes"] = str(id_bytes)
    if store:
        choices["store"] = "store"
    return choices


def _number(text: str) -> int:
    _require(text.isdigit(), "--id-bytes", text, "it is not a number")
    return int(text)


def check_name(name: str) -> None:
    """Raises ValueError that tells the rule if a backend cannot have this name."""
    from hvd_core.backends import _discovery

    rule = "a backend's name is 1 to 32 characters of a-z, 0-9 and '_', the first a letter"
    _require(
        _NAME.fullmatch(name) is not None and not name.endswith("_") and "__" not in name, "NAME", name, rule
    )
    _require(name not in _TAKEN, "NAME", name, "hvd-core uses this name itself")
    _require(not keyword.iskeyword(name) and name not in _CXX, "NAME", name, "it is a word of C++ or Python")
    for candidate in _discovery.candidates():
        _require(
            candidate.name != name,
            "NAME",
            name,
            f"a backend of this name is installed ({candidate.describe_origin()})",
        )


def check_device(device: str) -> None:
    """Raises ValueError if a device type cannot have this name."""
    rule = "a device type is 1 to 16 characters of a-z, 0-9 and '_', the first a letter"
    _require(_TYPE.fullmatch(device) is not None and not device.endswith("_"), "--device", device, rule)
    _require(
        not keyword.iskeyword(device) and device not in _CXX,
        "--device",
        device,
        "it is a word of C++ or Python",
    )


def check_runtime(runtime: str, name: str) -> None:
    """Raises ValueError if the device runtime's functions cannot have this prefix."""
    _require(
        _NAME.fullmatch(runtime) is not None,
        "--runtime",
        runtime,
        "a prefix must consist of a-z, 0-9 and '_'",
    )
    _require(
        runtime != name,
        "--runtime",
        runtime,
        "the library's functions have this prefix already, and both are in one simulator",
    )


def _require(good: bool, what: str, value: str, rule: str) -> None:
    if not good:
        raise ValueError(f"{what}: '{value}' cannot be used: {rule}")


def _interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask(question: str, flag: str, empty: bool = False) -> str:
    if not _interactive():
        raise ValueError(
            f"hvd plugin new needs {flag}, and cannot ask for it without a terminal; see hvd plugin new --help"
        )
    while True:
        answer = input(f"{question}: ").strip()
        if answer or empty:
            return answer
