"""A check of the English in comments, docstrings, messages and pages: `make lint` runs it on the whole tree.

A sentence names its subject by a noun (docs/glossary.md). The check finds the worst habits only: pronouns that stand
where a noun belongs, and words that the glossary has replaced. It reads text, and imports nothing of the project.

    python tests/architecture/plain_english.py [--count] [PATH ...]
"""

import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_VERB = (
    r"(?:is|was|are|were|has|have|had|can|cannot|could|may|must|does|do|did|will|would|shall|should|wants?|needs?|"
    r"waits?|asks?|calls?|comes?|came|goes|knows?|gives?|gave|holds?|takes?|says?|said|makes?|made|gets?|got|stands?)"
)

# (pattern, advice). Patterns are matched against prose with its line breaks folded into blanks.
RULES = (
    (r"\b[Ww]h(?:oever|omever|atever)\b", "name the rank, caller, thread, ... instead"),
    (r"\b(?:of|for|to|with|from|by|on|in) whom\b", "name the person or part that is meant"),
    (r"\b(?:[Ss]ome|[Nn]o|[Ee]very|[Aa]ny)body\b", "name the rank, caller, thread, user, ... instead"),
    (r"\bthose who\b", "name them: ranks that ..., callers that ..."),
    (
        rf"(?:^|[.:;(] )Who {_VERB}\b(?![^.;:]*\?)",
        "a statement begins with a noun: 'A rank that ...'",
    ),
    (
        r"\b(?:for|of|from|with|by|to|than|as|is|are|on|after|before|behind|and) "
        rf"what (?:{_VERB}|they|it|one|the|a|we|no)\b(?![^.;:]*\?)",
        "'what' is no noun: name the value, tensor, message, ...",
    ),
    (rf"(?:^|[.:;(] )What {_VERB}\b(?![^.;:]*\?)", "a statement begins with a noun, not with 'What'"),
    (
        r"\b(?:is|are|was|were|for|of|has|have|gives|if there is|where there is) none\b(?= ?[.,;:)])",
        "say which thing is missing",
    ),
    (
        r"\b(?:no|for|of|with|without|is) such(?= ?[.,;:)]| (?:is|are|as is)\b)",
        "'such' is no noun: repeat the noun",
    ),
    (r"\bfor company\b", "glossary: coalescing delay"),
    (r"\bgood-?byes?\b", "glossary: finalize"),
    (r"\b(?:guest|visitor)s?\b", "glossary: foreign device, caller, connection"),
    (r"\bNumPy face\b", "NumPy API"),
)
_COMPILED = [(re.compile(pattern), advice) for pattern, advice in RULES]

_CXX_SUFFIXES = (".cc", ".h", ".hpp", ".c", ".cu", ".inc")
_CXX_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _python_prose(source: str) -> Iterator[tuple[int, str, bool]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#:! "), True
        elif token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            text = re.sub(r"""^[rRbBuUfF]*("{3}|'{3}|["'])|("{3}|'{3}|["'])$""", "", token.string)
            yield token.start[0], text, False


def _cxx_prose(source: str) -> Iterator[tuple[int, str, bool]]:
    for match in _CXX_TEXT.finditer(source):
        text = match[0]
        number = source.count("\n", 0, match.start()) + 1
        if text.startswith("//"):
            yield number, text.lstrip("/ "), True
        elif text.startswith("/*"):
            # Each line's asterisk becomes a blank, so that line numbers stay.
            yield number, re.sub(r"\n\s*\*(?!/)", "\n", text[2:-2]), False
        else:
            yield number, text[1:-1], False


def _hash_prose(source: str) -> Iterator[tuple[int, str, bool]]:
    for number, line in enumerate(source.splitlines(), start=1):
        _, mark, text = line.partition("#")
        if mark:
            yield number, text.lstrip("# "), True


def prose(path: Path) -> list[tuple[int, str]]:
    """(line of its beginning, text) of each comment, string or page. Comments on following lines are one text."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [(1, _CODE.sub(lambda m: "\n" * m[0].count("\n") + "``", source))]
    if path.suffix == ".py":
        parts = _python_prose(source)
    elif path.suffix in _CXX_SUFFIXES:
        parts = _cxx_prose(source)
    else:
        parts = _hash_prose(source)
    joined: list[tuple[int, str]] = []
    last = -1
    for number, text, is_line_comment in parts:
        if is_line_comment and joined and number == last + 1:
            joined[-1] = (joined[-1][0], f"{joined[-1][1]}\n{text}")
        else:
            joined.append((number, text))
        last = number if is_line_comment else -1
    return joined


def violations(path: Path) -> list[str]:
    """`path:line: "words": advice` for each habit that the file's prose shows."""
    found = []
    for start, text in prose(path):
        folded = text.replace("\n", " ")
        for pattern, advice in _COMPILED:
            for match in pattern.finditer(folded):
                line = start + text.count("\n", 0, match.start())
                found.append((line, f'{path}:{line}: "{match[0].strip()}": {advice}'))
    return [text for _, text in sorted(found)]


def files() -> list[Path]:
    """The project's files that have prose, as git knows them; not data, and not what is generated or frozen."""
    names = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    suffixes = (*_CXX_SUFFIXES, ".py", ".md", ".toml", ".cmake", ".sh")
    skipped = (
        "/generated/",
        "tests/abi/frozen/",
        "/golden/",
        "tests/architecture/plain_english.py",
        "docs/glossary.md",
    )
    return [Path(n) for n in names if n.endswith(suffixes) and not any(part in n for part in skipped)]


def main(arguments: list[str]) -> int:
    """Print the violations of the named files, or of the whole tree; the exit status says whether there are any."""
    count = "--count" in arguments
    named = [Path(a) for a in arguments if not a.startswith("--")]
    wanted = [f for f in files() if not named or any(f.is_relative_to(p) for p in named)]
    found = [line for path in wanted if path.exists() for line in violations(path)]
    if count:
        for folder, n in Counter("/".join(line.split("/")[:3]) for line in found).most_common():
            print(f"{n:5d} {folder.split(':')[0]}")
    else:
        print("\n".join(found)) if found else None
    print(f"{len(found)} phrases without a noun in {len(wanted)} files", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
