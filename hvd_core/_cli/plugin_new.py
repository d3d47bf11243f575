"""``hvd plugin new NAME --device TYPE``: writes the project of a new backend.

The template is a real backend of this repository, with the simulator of its library, and with its names replaced.
template.toml lists the words that are names, and the files that are not copied. There is no template language: the
copied files are those that our own tests build and run.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_core._cli import output
from hvd_core._config.packaged import package_folders, reinstall

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]  # is installed for Python 3.10 only

DESCRIPTION = "template.toml"
DEVICE, HOST = "device", "host"
HOST_MEMORY = "cpu"
_MARK = "TO" + "DO"
_PASSES = re.compile(r"^(\s*)(//|#) Passes: ([\w., -]+?)\.?$")


@dataclass(frozen=True)
class Names:
    """Four names: of the backend, of the library that moves data (the prefix of its functions), of the device type, and
    of the device's runtime (the prefix of its functions). Lower case, letters, digits and '_'."""

    backend: str
    vendor: str
    device: str
    runtime: str


@dataclass(frozen=True)
class Edit:
    """Replaces ``old``, which occurs once in ``file``, by ``new``: always, or only if the choice ``when`` was made."""

    file: str
    old: str
    new: str
    when: str = ""


@dataclass(frozen=True)
class Template:
    """The template: its folder, the folder of the library's simulator and the name that this has in a project, its
    names, glob patterns of files that are not copied, and further edits. ``kind``: the memory of the backends that are
    made from it, DEVICE or HOST."""

    root: Path
    simulator: Path
    simulator_name: str
    names: Names
    private: tuple[str, ...]
    edits: tuple[Edit, ...]
    kind: str = "device"

    def files(self) -> dict[Path, Path]:
        """The files that are copied, by their relative paths in a project."""
        own = {p: self.root / p for p in _sources(self.root, (DESCRIPTION, *self.private))}
        simulator = _sources(self.simulator, self.private)
        return own | {Path(self.simulator_name) / p: self.simulator / p for p in simulator}


def _sources(root: Path, private: Iterable[str]) -> Iterator[Path]:
    """The relative paths of the files in a folder that neither are private nor were made by a build."""
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        generated = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
        if path.is_file() and not generated and path.suffix not in (".so", ".pyc"):
            places = (relative, *relative.parents)
            if not any(p.match(pattern) for p in places for pattern in private):
                yield relative


def find_template(kind: str = DEVICE) -> Template:
    """The template of a kind in this installation, or in the source tree around the package. Raises FileNotFoundError."""
    packages = package_folders()
    for package in packages:
        for folder in (*sorted(package.glob("template*")), *sorted((package.parent / "backends").glob("*"))):
            if not (folder / DESCRIPTION).is_file():
                continue
            found = read_template(folder)
            if found.kind == kind and found.simulator.is_dir():
                return found
    raise FileNotFoundError(
        "the template is not in this installation.\n"
        f"  searched: {', '.join(str(p / 'template') for p in packages)}\n"
        f"  fix: reinstall hvd-core: {reinstall()}"
    )


def read_template(folder: Path) -> Template:
    """The template in a folder with a template.toml. The simulators are beside it in a wheel, and beside the folder of
    all backends in a checkout."""
    data = tomllib.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    edits = tuple(Edit(**edit) for edit in data.get("edits", ()))
    kind = data.get("kind", DEVICE)
    source, name = data["simulator"]["source"], data["simulator"]["folder"]
    places = [parent / "simulators" / source for parent in folder.parents[:2]]
    simulator = next((place for place in places if place.is_dir()), places[0])
    private = tuple(data["private"]["files"])
    return Template(folder, simulator, name, Names(**data["names"]), private, edits, kind)


class Renaming:
    """Replaces the template's names in texts and paths, in each of the spellings that code has for a name."""

    def __init__(self, old: Names, new: Names) -> None:
        self._words: dict[str, str] = {}
        # The backend's name goes first: it may begin with the vendor's.
        for before, after in zip(
            (old.backend, old.vendor, old.device, old.runtime),
            (new.backend, new.vendor, new.device, new.runtime),
        ):
            for spell in (str, str.upper, _camel, _dashed):
                self._words.setdefault(spell(before), spell(after))
        # A name is a word or begins one (xGetThing, x_thing, libx), or stands where its first letter is a capital one
        # (TestX), or between two words (ixThing_t); "stops" has no tops in it.
        every = sorted(self._words, key=len, reverse=True)
        capital = "|".join(map(re.escape, (word for word in every if word[0].isupper())))
        any_of = "|".join(map(re.escape, every))
        self._pattern = re.compile(
            rf"(?:(?<![A-Za-z])|(?<=lib))(?:{any_of})(?![a-z])"
            rf"|(?<=[a-z])(?:{capital})(?![a-z])|(?<=[a-z])(?:{any_of})(?=[A-Z_])"
        )
        self._case = new.backend

    def text(self, text: str) -> str:
        """A file's text with the new names. A comment with the case that a function passes becomes a task for the
        author."""
        lines = [self._task(line) for line in text.split("\n")]
        return self._pattern.sub(self._renamed, "\n".join(lines))

    def path(self, path: Path) -> Path:
        """A file's relative path."""
        return Path(self._pattern.sub(self._renamed, path.as_posix()))

    def _renamed(self, match: re.Match[str]) -> str:
        return self._words[match[0]]

    def _task(self, line: str) -> str:
        match = _PASSES.match(line)
        if match is None:
            return line
        indent, comment, cases = match.groups()
        cases_to_run = " ".join(f"--case {case}" for case in re.split(r"[,\s]+", cases) if case)
        return (
            f"{indent}{comment} {_MARK}: replace with your library's call.\n"
            f"{indent}{comment} hvd plugin check {self._case} {cases_to_run} shows this works."
        )


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def write_project(
    template: Template, new: Names, target: Path, choices: Mapping[str, str], extra: Mapping[str, str]
) -> list[Path]:
    """Write the project into ``target``, which must not exist or be empty, and return the relative paths of its files.

    ``choices``: which edits apply, and the value that stands for ``{choice}`` in them. ``extra``: files that the
    template does not have, by relative path. Raises FileExistsError; ValueError where names or edits do not fit.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"{target} exists already; nothing was written.\n  fix: remove it, or choose another --directory"
        )
    renaming = Renaming(template.names, new)
    texts: dict[Path, str] = {}
    modes: dict[Path, int] = {}
    for relative, source in template.files().items():
        renamed = renaming.path(relative)
        if renamed in texts:
            raise ValueError(f"two files of the template would be called {renamed}; choose other names")
        text = renaming.text(_edited(template, relative, source, choices))
        for choice, value in choices.items():
            text = text.replace("{" + choice + "}", value)
        texts[renamed], modes[renamed] = text, source.stat().st_mode
    texts |= {Path(name): text for name, text in extra.items()}
    for relative, text in texts.items():
        path = target / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(modes.get(relative, 0o644) & 0o777 | 0o200)
    return sorted(texts)


def _edited(template: Template, relative: Path, source: Path, choices: Mapping[str, str]) -> str:
    text = source.read_text(encoding="utf-8")
    for edit in template.edits:
        if edit.file != relative.as_posix() or (edit.when and edit.when not in choices):
            continue
        if text.count(edit.old) != 1:
            raise ValueError(
                f"{DESCRIPTION}: {edit.file} has {text.count(edit.old)} of: {edit.old.strip()[:60]}"
            )
        text = text.replace(edit.old, edit.new)
    return text


# ---- the project's README: from the simulator to the vendor's own library, step by step -------------------------------


def readme(name: str, device: str, runtime: str, choices: Mapping[str, str]) -> str:
    """The README. ``choices`` as in ``write_project()``."""
    file = "project_readme_host.md" if device == HOST_MEMORY else "project_readme.md"
    library = choices.get("library")
    words = {
        "@dashed@": name.replace("_", "-"),
        "@name@": name,
        "@NAME@": name.upper(),
        "@device@": device,
        "@runtime@": runtime,
        "@library@": f" from `{library}`"
        if library
        else "; the name of the library is in `default_library()`",
        "@todo@": f"`{_MARK}`",
        "@steps@": "\n".join(first_steps(name, device, ".", library is not None)),
    }
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(word, value)
    return text


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


# ---- the verb ---------------------------------------------------------------------------------------------------------

_GITIGNORE = "build/\ndist/\n*.so\n*.egg-info/\n__pycache__/\n"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LEAST_ID, _MOST_ID = 128, 1 << 20
_SONAME = re.compile(r"[\w+./-]+\.so(\.\d+)*")
# HOROVOD_BACKEND_SPEC and HOROVOD_BACKEND_PATH_... have another meaning.
_TAKEN = ("spec", "path", "hvd", "horovod")
# As names of C++ namespaces they would not compile. Python's own are in the module keyword.
_CXX = ("auto", "char", "const", "default", "delete", "double", "float", "int", "long", "namespace", "new", "private",
        "public", "short", "static", "struct", "template", "this", "typedef", "union", "virtual", "void")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    add = parser.add_argument
    add("name", metavar="NAME", help="the backend's name, such as acme")
    add(
        "--device",
        metavar="TYPE",
        required=True,
        help="the device type that it serves, as in tensor.to(TYPE); cpu: host memory",
    )
    add("--library", metavar="SONAME", help="your library, such as libacme.so.2 (the simulator)")
    add("--runtime", metavar="PREFIX", help="prefix of the device runtime's functions (NAMErt)")
    ids = parser.add_mutually_exclusive_group()
    ids.add_argument("--id-bytes", type=int, metavar="N", help="size of the library's unique id (128)")
    text = "it has no unique id: ranks use the job's store for the rendezvous"
    ids.add_argument("--store", action="store_true", help=text)
    add("--directory", metavar="DIR", help="where to write it (./hvd-backend-NAME)")
    output.add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Write the project. Raises ValueError for invalid names, FileExistsError if the folder is not empty."""
    name, device = options.name, options.device
    check_name(name)
    choices: dict[str, str] = {}
    if device == HOST_MEMORY:
        for option in ("library", "runtime", "id_bytes", "store"):
            if getattr(options, option):
                raise ValueError(
                    f"--{option.replace('_', '-')} cannot be used: it is about devices, and --device {HOST_MEMORY} "
                    "is host memory"
                )
        template = find_template(HOST)
        names = Names(name, name, template.names.device, template.names.runtime)
        works, stand_in = "The backend works over a small library", "that library"
    else:
        template = find_template(DEVICE)
        names = Names(name, name, device, options.runtime or f"{name}rt")
        choices = _choices(options, names)
        works, stand_in = "The backend works on a simulator", "the simulator"
    target = Path(options.directory or f"hvd-backend-{name.replace('_', '-')}")
    extra = {"README.md": readme(name, device, names.runtime, choices), ".gitignore": _GITIGNORE}
    files = write_project(template, names, target, choices, extra)
    if options.json:
        output.document({"directory": str(target.resolve()), "files": [str(f) for f in files]})
        return output.OK
    print(
        f"{target}: {len(files)} files. {works}; its README.md says how to\n"
        f"replace {stand_in} with your library. First:\n"
    )
    for line in first_steps(name, device, str(target), "library" in choices):
        print(f"  {line}")
    return output.OK


def check_name(name: str) -> None:
    """Raises ValueError with the rule if a backend cannot have this name."""
    from hvd_core.backends import _discovery

    _check("NAME", name, 32, "a backend's name")
    _require(name not in _TAKEN, "NAME", name, "hvd-core uses this name itself")
    for candidate in _discovery.candidates():
        taken = f"a backend of this name is installed ({candidate.describe_origin()})"
        _require(candidate.name != name, "NAME", name, taken)


def _choices(options: argparse.Namespace, names: Names) -> dict[str, str]:
    """The changes of the template apart from the names. Raises ValueError for names and values that cannot be used."""
    _check("--device", names.device, 16, "a device type")
    _check("--runtime", names.runtime, 32, "a prefix")
    both = "the library's functions have this prefix already, and both are in one simulator"
    _require(names.runtime != names.backend, "--runtime", names.runtime, both)
    choices = {}
    if library := options.library:
        rule = f"it must be a soname such as lib{names.backend}.so.2"
        _require(_SONAME.fullmatch(library) is not None, "--library", library, rule)
        choices["library"] = library
    if (size := options.id_bytes) is not None:
        rule = f"it must be between {_LEAST_ID}, which the simulator needs, and {_MOST_ID}"
        _require(_LEAST_ID <= size <= _MOST_ID, "--id-bytes", str(size), rule)
        choices["id_bytes"] = str(size)
    if options.store:
        choices["store"] = "store"
    return choices


def _check(what: str, name: str, longest: int, kind: str) -> None:
    rule = f"{kind} is 1 to {longest} characters of a-z, 0-9 and '_', the first a letter"
    _require(_NAME.fullmatch(name) is not None and len(name) <= longest, what, name, rule)
    _require(not keyword.iskeyword(name) and name not in _CXX, what, name, "it is a word of C++ or Python")


def _require(good: bool, what: str, value: str, rule: str) -> None:
    if not good:
        raise ValueError(f"{what}: '{value}' cannot be used: {rule}")
