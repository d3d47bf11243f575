"""Builds the wheel `hvd-sparkdl`, whose version is that of hvd-core: read from the checkout, or from PKG-INFO."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def version() -> str:
    """The version of hvd-core in the checkout around this folder, else that of the source distribution."""
    places = (
        (HERE.parents[1] / "hvd_core" / "version.py", r'^__version__ = "(.+)"$'),
        (HERE / "PKG-INFO", r"^Version: (.+)$"),
    )
    for path, pattern in places:
        if path.is_file():
            return re.search(pattern, path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    raise SystemExit(f"{HERE}: build the wheel in the checkout of hvd-core, or from its source distribution.")


setup(version=version(), install_requires=[f"hvd-core=={version()}"])
