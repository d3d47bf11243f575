"""Installs what hvd-core requires, without building hvd-core.

    python requirements/install.py [EXTRA ...] [-r FILE]

pyproject.toml lists the requirements; pip itself cannot install them without a build. Installs into the environment of
the Python that runs it. With `--print` the requirements are printed instead.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: the copy that pip brings
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def requirements(extras: list[str]) -> list[str]:
    """The requirements of hvd-core and of these extras, those that an extra takes from another one included."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    found: list[str] = list(project["dependencies"])
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(r"hvd-core\[(.+)\]", requirement)
            found += requirements(own[1].split(",")) if own else [requirement]
    return list(dict.fromkeys(found))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    parser.add_argument("-r", dest="file", help="further requirements, a file of pip's")
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    wanted = requirements(options.extras)
    if options.print:
        print("\n".join(wanted))
        return 0
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", *wanted]
    return subprocess.call([*pip, "-r", options.file] if options.file else pip)


if __name__ == "__main__":
    sys.exit(main())
