"""Compares whole messages with files in golden/.

    GOLDEN=update python -m pytest tests/selection

writes the files anew; look at the difference before it is committed.
"""

import os
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import hvd_core

FOLDER = Path(__file__).parent / "golden"
PACKAGE = str(Path(hvd_core.__file__).resolve().parent)


def golden(name, text, *, folder=None, also=()):
    """``text`` must be golden/NAME.txt. What differs between machines is replaced: ``folder`` (the test's own) by FOLDER,
    the package's by PACKAGE, this version by VERSION; ``also``: pairs (regular expression, replacement)."""
    for real, shown in ((str(folder) if folder else None, "FOLDER"), (PACKAGE, "PACKAGE")):
        text = text.replace(real, shown) if real else text
    text = text.replace(f"hvd-core {hvd_core.__version__}", "hvd-core VERSION")
    # The tests' environment may have the project's own wheels installed, or not; another version is of a test's own.
    text = re.sub(r", eccl_stub \(hvd-backend-eccl-stub [^)]*\)", "", text)
    for own in ("gloo", "mpi"):
        with suppress(PackageNotFoundError):
            text = text.replace(f", {own} (hvd-backend-{own} {version(f'hvd-backend-{own}')})", "")
    for pattern, shown in also:
        text = re.sub(pattern, shown, text)
    path = FOLDER / f"{name}.txt"
    if os.environ.get("GOLDEN") == "update":
        path.write_text(text + "\n")
    assert path.exists(), f"{path} is missing; GOLDEN=update makes it. The text:\n{text}"
    assert text + "\n" == path.read_text(), f"differs from {path}"
