"""A virtual environment that has what wheels ask for and nothing else, made without downloading.

What the wheels require is taken from the environment that the tests run in, distribution by distribution, along their
own metadata: a package that is not declared is not there.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

# Variables that would let the checkout, or an outer job, shine through.
_DROPPED = ("PYTHON", "HOROVOD_", "VIRTUAL_ENV", "OMPI_", "PMI")


class CleanEnvironment:
    """``python`` and the commands of installed wheels, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=400)
        self.folder, self.python = folder, folder / "bin" / "python"
        (self.site,) = folder.glob("lib/python3*/site-packages")
        self._present: set[tuple[str, tuple[str, ...]]] = set()

    def install(self, wheel: Path) -> None:
        """Install a wheel, and link the distributions that it requires."""
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.python),
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--no-compile",  # modules that no test imports would cost as much as the others
        ]
        _run([*command, "--force-reinstall", str(wheel)])
        (found,) = metadata.distributions(
            name=wheel.name.split("-")[0].replace("_", "-"), path=[str(self.site)]
        )
        self._present.add((_canonical(found.metadata["Name"]), ()))
        for requirement in found.requires or ():
            self.borrow(requirement)

    def borrow(self, requirement: str, asked_with: tuple[str, ...] = ("",)) -> None:
        """Link a distribution of the tests' environment, and all that it requires in turn. ``asked_with``: the extras of
        the distribution that requires it."""
        wanted = Requirement(requirement)
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": e}) for e in asked_with):
            return
        name, extras = _canonical(wanted.name), tuple(sorted(wanted.extras))
        if (name, extras) in self._present:
            return
        self._present |= {(name, ()), (name, extras)}
        found = metadata.distribution(wanted.name)
        assert wanted.specifier.contains(found.version, prereleases=True), f"{requirement}: {found.version}"
        own = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in sorted(own):
            if not (self.site / top).exists():
                (self.site / top).symlink_to(found.locate_file(top))
        for further in found.requires or ():
            self.borrow(further, ("", *extras))

    def run(
        self, *command: str, code: int = 0, timeout: float = 400, cwd: Path | None = None, **variables: str
    ) -> str:
        """Both outputs of a command of this environment, started away from the checkout; it must end with ``code``."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
        kept |= {"PATH": f"{self.folder / 'bin'}:{os.defpath}", "OMP_NUM_THREADS": "1", **variables}
        return _run(list(command), env=kept, cwd=cwd or self.folder, timeout=timeout, code=code)


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _run(command: list[str], code: int = 0, timeout: float = 600, **options) -> str:
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, **options
    )
    assert result.returncode == code, f"{command} ended with {result.returncode}:\n{result.stdout[-6000:]}"
    return result.stdout


def build_wheel(project: Path, *arguments: str, env: Mapping[str, str]) -> None:
    """`python -m build --wheel` of a project, by the tests' environment, with further arguments."""
    command = [sys.executable, "-m", "build", "--wheel", *arguments, str(project)]
    env = {**env, "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=800, env=env)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
