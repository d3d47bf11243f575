"""L0: the backend's package works in any folder. Each place has a process of its own, which imports the package there."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hvd_core._base import sandbox
from hvd_core.conformance import interpreter
from hvd_core.conformance.alone import Bare
from hvd_core.conformance.cases import case
from hvd_core.conformance.lint_description import described

ODD = "a blank, ä and 中"
_COPIED = (".py", ".toml", ".json", ".txt")
_MOST_FILES = 10_000
_ANSWER_S = 60.0

# Describes and probes. The answer has no texts of the plugin, because they may show its path.
_ASK = """
import sys, json, os, importlib
from hvd_core.backends.descriptor import Available, Unavailable
place, entry, folder, variable = json.loads(sys.argv[1])
os.chdir(folder)
if place:
    sys.path.insert(0, place)
importlib.invalidate_caches()
module, _, attribute = entry.partition(":")
try:
    told = getattr(importlib.import_module(module), attribute)()
    if variable and getattr(told.probe(), "library", ""):
        found = told.probe().library
        os.symlink(os.path.dirname(found), "of the vendor")
        os.environ[variable] = os.path.abspath(os.path.join("of the vendor", os.path.basename(found)))
    answer = told.probe()
    said = {Available: "available", Unavailable: "unavailable"}.get(type(answer), repr(answer))
    why = getattr(answer, "reason", "")
    library = told.library is not None and os.path.isfile(told.library)
except BaseException as error:
    said, why, library = "an exception", f"{type(error).__name__}: {error}", False
print()
print(json.dumps({"said": said, "why": why, "library": library}))
"""


@case(
    "L0.paths",
    "describe and probe answer alike from a folder with a blank, other letters, behind a link",
    ranks=0,
)
def paths(bare: Bare) -> None:
    described(bare)
    entry = bare.target.entry
    top = entry.partition(":")[0].partition(".")[0]
    with tempfile.TemporaryDirectory() as made:
        odd = Path(made).resolve() / ODD
        (odd / "site").mkdir(parents=True)
        (odd / "elsewhere").mkdir()
        (odd / "link").symlink_to("site")
        whole = _mirror(top, odd / "site")
        usual = _ask("", entry, os.getcwd())
        variable = f"HOROVOD_BACKEND_{bare.target.name.upper().replace('-', '_')}_LIBRARY"
        asked = {
            "another current folder": ("", odd / "elsewhere", ""),
            "a folder with a blank and other letters": (odd / "site", os.getcwd(), ""),
            "a folder behind a link": (odd / "link", os.getcwd(), ""),
            "a relative folder": ("site", odd, ""),
            "a link to the vendor's library": ("", odd / "elsewhere", variable),
        }
        for what, (place, folder, of_vendor) in asked.items():
            found = _ask(str(place), entry, str(folder), of_vendor)
            if place and not whole:  # an editable installation keeps its library somewhere else
                found["library"] = usual["library"]
            bare.expect(
                (found["said"], found["library"]) == (usual["said"], usual["library"]),
                f"with {what} {_in_words(found)}; otherwise {_in_words(usual)}",
            )
        bare.note("places", ", ".join(asked))


def _mirror(top: str, site: Path) -> bool:
    """Puts a package, or a module of one file, into ``site``: a copy of the small files and links to the others. Returns
    whether the backend's library is among them."""
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return False
    if not spec.submodule_search_locations:
        (site / Path(spec.origin).name).write_bytes(Path(spec.origin).read_bytes())
        for beside in Path(spec.origin).parent.glob("*.hvd.toml"):
            (site / beside.name).write_bytes(beside.read_bytes())
        return False
    package, found, libraries = Path(spec.origin).parent, 0, False
    for folder, _, files in os.walk(package):
        here = site / top / Path(folder).relative_to(package)
        here.mkdir(parents=True, exist_ok=True)
        for name in files:
            found += 1
            if found > _MOST_FILES:
                return libraries
            libraries |= ".so" in name
            source = Path(folder, name)
            if source.suffix in _COPIED:
                (here / name).write_bytes(source.read_bytes())
            elif source.suffix != ".pyc":
                (here / name).symlink_to(source)
    for libs in package.parent.glob(f"{top}*.libs"):  # where auditwheel puts what it has found
        (site / libs.name).symlink_to(libs)
    return libraries


def _ask(place: str, entry: str, folder: str, variable: str = "") -> dict[str, Any]:
    question = json.dumps([place, entry, folder, variable])
    done = sandbox.run([*interpreter.WORDS, "-c", _ASK, question], timeout_s=_ANSWER_S)
    if done.returncode is None:
        return {"said": f"a timeout after {_ANSWER_S:g} s", "why": "", "library": False}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines()[-1:] or [""]
        return {
            "said": f"a process that {sandbox.describe_exit(done.returncode)}",
            "why": said[0],
            "library": False,
        }


def _in_words(answer: dict[str, Any]) -> str:
    text = f"the answer is {answer['said']}"
    text += f" ({answer['why']})" if answer["why"] else ""
    return text if answer["library"] else f"{text}, and the library of the descriptor does not exist"
