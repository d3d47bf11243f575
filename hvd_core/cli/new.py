"""``hvd plugin new NAME --device TYPE``: asks for what is missing, checks the names, writes the project."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Callable
from pathlib import Path

from hvd_core.cli import codes, output, template
from hvd_core.cli.template import Names

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,15}")
_SONAME = re.compile(r"[\w+./-]+\.so(\.\d+)*")
# HOROVOD_BACKEND_SPEC and HOROVOD_BACKEND_PATH_... are variables of ours.
_TAKEN = ("spec", "path", "hvd", "horovod")
# As names of C++ namespaces they would not compile. Python's own are in the module keyword.
_CXX = ("auto", "char", "const", "default", "delete", "double", "float", "int", "long", "namespace", "new", "private",
        "public", "short", "static", "struct", "template", "this", "typedef", "union", "virtual", "void")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Write the project. Raises ValueError for names that cannot be, FileExistsError for a folder that is in use."""
    name = options.name or _ask("Name of the backend (such as acme)", "NAME")
    check_name(name)
    device = options.device or _ask("Device type, as in tensor.to(TYPE)", "--device TYPE")
    check_device(device)
    library = options.library
    if library is None and not options.device and _interactive():
        library = _ask(
            "The vendor's library (such as libacme.so.2; empty: the simulator)", "--library", empty=True
        )
    if library and _SONAME.fullmatch(library) is None:
        raise ValueError(f"'{library}' is not the name of a shared library, such as lib{name}.so.2")
    runtime = options.runtime or f"{name}rt"
    _want(_NAME.fullmatch(runtime) is not None and runtime != name, "--runtime", runtime,
          "the prefix of the runtime's functions is another than the library's, in lower case")  # fmt: skip

    found = template.find()
    target = Path(options.directory or f"hvd-backend-{name.replace('_', '-')}")
    files = template.write(
        found, Names(name, name, device, runtime), target, _rewrites(name, device, library or "")
    )
    if options.json:
        output.document({"directory": str(target.resolve()), "files": [str(f) for f in files]})
        return codes.OK
    print(f"{target}: {len(files)} files, a backend that works on a simulator of its own. README.md has the way from\n"
          f"there to {library or 'your library'}. First:\n")  # fmt: skip
    for line in _steps(name, target):
        print(f"  {line}")
    return codes.OK


def _steps(name: str, target: Path) -> list[str]:
    return [
        f"pip install build && python -m build --wheel {target}",
        f"pip install {target}/dist/*.whl",
        f"hvd plugin check {name} -np 2",
        f"HOROVOD_BACKEND={name} horovodrun -np 2 python train.py",
    ]


def check_name(name: str) -> None:
    """Whether a backend can have this name here. Raises ValueError that says what it may be."""
    from hvd_core.backends import discovery

    rule = "a backend's name is 1 to 32 characters of a-z, 0-9 and '_', the first a letter"
    _want(
        _NAME.fullmatch(name) is not None and not name.endswith("_") and "__" not in name, "NAME", name, rule
    )
    _want(name not in _TAKEN, "NAME", name, "the name is hvd-core's own")
    _want(not keyword.iskeyword(name) and name not in _CXX, "NAME", name, "it is a word of C++ or Python")
    for candidate in discovery.candidates():
        _want(
            candidate.name != name,
            "NAME",
            name,
            f"a backend of this name is installed ({candidate.describe_origin()})",
        )


def check_device(device: str) -> None:
    """Whether a device type can have this name. Raises ValueError."""
    rule = "a device type is 1 to 16 characters of a-z, 0-9 and '_', the first a letter"
    _want(_TYPE.fullmatch(device) is not None and not device.endswith("_"), "--device", device, rule)
    _want(
        not keyword.iskeyword(device) and device not in _CXX,
        "--device",
        device,
        "it is a word of C++ or Python",
    )
    _want(
        device != "cpu",
        "--device",
        device,
        "host memory needs no device; docs/backend-abi.md has backends for it",
    )


def _want(good: bool, what: str, value: str, rule: str) -> None:
    if not good:
        raise ValueError(f"{what}: '{value}' cannot be used: {rule}")


def _interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask(question: str, flag: str, empty: bool = False) -> str:
    if not _interactive():
        raise ValueError(
            f"hvd plugin new needs {flag}, and there is no terminal to ask on; see hvd plugin new --help"
        )
    while True:
        answer = input(f"{question}: ").strip()
        if answer or empty:
            return answer


def _rewrites(name: str, device: str, library: str) -> dict[Path, Callable[[str], str]]:
    """Files of the project that are not the template's alone."""
    return {}
