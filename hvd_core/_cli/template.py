"""Makes a backend's project from the template: a real backend of this repository, with its names replaced.

template.toml lists the words that are names, and the files that are not copied. There is no template language: the copied
files are those that our own tests build and run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_core._config.hints import pip_install

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

DESCRIPTION = "template.toml"
DEVICE, HOST = "device", "host"
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
    """The template: its folder, its names, glob patterns of files that are not copied, and further edits. ``kind``: the
    memory of the backends that are made from it, DEVICE or HOST."""

    root: Path
    names: Names
    private: tuple[str, ...]
    edits: tuple[Edit, ...]
    kind: str = "device"

    def files(self) -> Iterator[Path]:
        """The relative paths of the files that are copied."""
        for path in sorted(self.root.rglob("*")):
            relative = path.relative_to(self.root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
            if (
                path.is_file()
                and not hidden
                and path.suffix not in (".so", ".pyc")
                and not self._is_private(relative)
            ):
                yield relative

    def _is_private(self, relative: Path) -> bool:
        return any(
            relative.match(pattern) or any(parent.match(pattern) for parent in relative.parents)
            for pattern in (DESCRIPTION, *self.private)
        )


def find(kind: str = DEVICE) -> Template:
    """The template of a kind in this installation, or in the source tree around the package. Raises FileNotFoundError."""
    packages = [Path(p) for p in getattr(sys.modules.get("hvd_core"), "__path__", ())]
    packages.append(Path(__file__).resolve().parent.parent)
    for package in packages:
        for folder in (*sorted(package.glob("template*")), *sorted((package.parent / "backends").glob("*"))):
            if (folder / DESCRIPTION).is_file() and (found := read(folder)).kind == kind:
                return found
    raise FileNotFoundError(
        "the template is not in this installation.\n"
        f"  searched: {', '.join(str(p / 'template') for p in packages)}\n"
        f"  fix: reinstall hvd-core: {pip_install('hvd-core', '--force-reinstall', '--no-deps')}"
    )


def read(folder: Path) -> Template:
    """The template in a folder with a template.toml."""
    data = tomllib.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    edits = tuple(Edit(**edit) for edit in data.get("edits", ()))
    kind = data.get("kind", DEVICE)
    return Template(folder, Names(**data["names"]), tuple(data["private"]["files"]), edits, kind)


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
        asked = " ".join(f"--case {case}" for case in re.split(r"[,\s]+", cases) if case)
        return (
            f"{indent}{comment} {_MARK}: replace by your library's call.\n"
            f"{indent}{comment} hvd plugin check {self._case} {asked} shows this works."
        )


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def write(
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
    for relative in template.files():
        renamed = renaming.path(relative)
        if renamed in texts:
            raise ValueError(f"two files of the template would be called {renamed}; choose other names")
        text = renaming.text(_edited(template, relative, choices))
        for choice, value in choices.items():
            text = text.replace("{" + choice + "}", value)
        texts[renamed], modes[renamed] = text, (template.root / relative).stat().st_mode
    texts |= {Path(name): text for name, text in extra.items()}
    for relative, text in texts.items():
        path = target / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(modes.get(relative, 0o644) & 0o777 | 0o200)
    return sorted(texts)


def _edited(template: Template, relative: Path, choices: Mapping[str, str]) -> str:
    text = (template.root / relative).read_text(encoding="utf-8")
    for edit in template.edits:
        if edit.file != relative.as_posix() or (edit.when and edit.when not in choices):
            continue
        if text.count(edit.old) != 1:
            raise ValueError(
                f"{DESCRIPTION}: {edit.file} has {text.count(edit.old)} of: {edit.old.strip()[:60]}"
            )
        text = text.replace(edit.old, edit.new)
    return text
