"""The README of a new backend's project: the way from the simulator to the vendor's own library, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_TEMPLATE = Path(__file__).with_suffix(".md")
_HOST_TEMPLATE = Path(__file__).with_name("project_readme_host.md")


def text(name: str, device: str, runtime: str, choices: Mapping[str, str]) -> str:
    """The README. ``choices`` as in template.write()."""
    library = choices.get("library")
    where = f" from `{library}`" if library else "; the name of the library is in `default_library()`"
    words = {
        "@dashed@": name.replace("_", "-"),
        "@name@": name,
        "@NAME@": name.upper(),
        "@device@": device,
        "@runtime@": runtime,
        "@library@": where,
        "@todo@": "`TO" + "DO`",
        "@steps@": "\n".join(first_steps(name, device, ".", library is not None)),
    }
    made = _TEMPLATE.read_text(encoding="utf-8")
    for word, value in words.items():
        made = made.replace(word, value)
    return made


def host_text(name: str) -> str:
    """The README of a backend of host memory."""
    made = _HOST_TEMPLATE.read_text(encoding="utf-8")
    words = {
        "@dashed@": name.replace("_", "-"),
        "@name@": name,
        "@NAME@": name.upper(),
        "@todo@": "`TO" + "DO`",
    }
    for word, value in (words | {"@steps@": "\n".join(first_steps(name, "cpu", "."))}).items():
        made = made.replace(word, value)
    return made


def first_steps(name: str, device: str, folder: str, other_library: bool = False) -> list[str]:
    """The commands that show the new project at work, from the folder that it lies in or from elsewhere."""
    steps = [
        "pip install build cmake ninja scikit-build-core",
        f"python -m build --wheel --no-isolation {folder}",
        f"pip install {folder}/dist/*.whl",
    ]
    if other_library:  # the backend looks for that, so the simulator has to be named
        module = f"hvd_backend_{name}"
        find = f'python -c "import {module} as m; print(m.__path__[0])"'
        steps.append(f"export HOROVOD_BACKEND_{name.upper()}_LIBRARY=$({find})/lib/lib{name}_sim.so")
    return [
        *steps,
        "hvd plugin list",
        f"hvd plugin check {name} -np 2 --quick",
        f"HOROVOD_BACKEND={'cpu=' * (device == 'cpu')}{name} horovodrun -np 2 python train.py    "
        + ("# yours" if device == "cpu" else f"# yours, with tensors on {device}"),
    ]
