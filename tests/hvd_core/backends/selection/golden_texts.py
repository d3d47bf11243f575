"""Compares whole messages with golden/MODULE.txt, one file per test module, one section per message.

    GOLDEN=update python -m pytest tests/hvd_core/backends/selection -n 0

rewrites the sections of the tests that run. Look at the difference before it is committed.
"""

import os
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import hvd_core

FOLDER = Path(__file__).parent / "golden"
PACKAGE = str(Path(hvd_core.__file__).resolve().parent)
HEAD = re.compile(r"^=== (\w+) ===\n", re.MULTILINE)


def read(path):
    """{name: text} of the sections of a golden file; {} if the file does not exist."""
    if not path.exists():
        return {}
    _, *parts = HEAD.split(path.read_text())
    return {name: text.removesuffix("\n\n") for name, text in zip(parts[::2], parts[1::2])}


def write(path, sections):
    path.write_text("".join(f"=== {name} ===\n{text}\n\n" for name, text in sorted(sections.items())))


def golden(name, text, *, folder=None, also=()):
    """``text`` must be the section ``name`` of the running test module's golden file. Parts that differ between machines
    are replaced: ``folder`` (the test's own) by FOLDER, the package's by PACKAGE, this version by VERSION; ``also``:
    pairs (regular expression, replacement)."""
    for real, shown in ((str(folder) if folder else None, "FOLDER"), (PACKAGE, "PACKAGE")):
        text = text.replace(real, shown) if real else text
    text = text.replace(f"hvd-core {hvd_core.__version__}", "hvd-core VERSION")
    # The tests' environment may have the project's own wheels installed, or not; a test's own wheel has another version.
    text = re.sub(r", eccl_stub \(hvd-backend-eccl-stub [^)]*\)", "", text)
    for own in ("gloo", "mpi", "nccl"):
        with suppress(PackageNotFoundError):
            text = text.replace(f", {own} (hvd-backend-{own} {version(f'hvd-backend-{own}')})", "")
    for pattern, shown in also:
        text = re.sub(pattern, shown, text)
    module = Path(os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]).stem
    path = FOLDER / f"{module}.txt"
    sections = read(path)
    if os.environ.get("GOLDEN") == "update":
        sections[name] = text
        write(path, sections)
    assert name in sections, f"{path} has no section {name}; GOLDEN=update writes it. The text:\n{text}"
    assert text == sections[name], f"differs from section {name} of {path}"
