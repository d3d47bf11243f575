"""Starts programs that are files on several ranks through the real launcher: the matrices of the engine's tests. Checks that
are functions run on living ranks; see tests/harness."""

import os
import subprocess
from pathlib import Path

import hvd_core
from harness import finish
from harness.frameworks import horovodrun

__all__ = ["finish", "has_backend", "start"]


def has_backend(name: str) -> bool:
    """Whether this build embeds the backend."""
    return any((Path(hvd_core.__file__).parent / "lib").glob(f"*{name}*.so"))


def start(ranks: int, program: Path, env=None, arguments=(), **popen) -> subprocess.Popen:
    """The launcher, running; its output is one stream of text."""
    return subprocess.Popen(
        [*horovodrun(ranks), str(program), *arguments],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **popen,
    )
