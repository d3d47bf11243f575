"""Runs ``hvd`` as its users do, and makes the wheels that it is to find, as pip would leave them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

DESCRIBE = """
from pathlib import Path
from hvd_core.backends import Available, BackendDescriptor, Unavailable

def describe():
    return BackendDescriptor(
        name="{name}", abi=(1, 0), devices=("widget",), provides=frozenset({{"device", "comm"}}),
        library=Path("{library}"), priority=70, requires=("libwidget.so >= 2",), probe=probe)

def probe():
    return {answer}
"""


class CommandLine:
    """``hvd`` in an environment with a site folder of its own; ``variables`` are added to the environment."""

    def __init__(self, site: Path) -> None:
        self.site, self.variables = site, {}

    def run(self, *arguments, code=0, cwd=None, program=("-m", "hvd_core.cli")):
        """Standard output of one run that must end with ``code``."""
        environment = {
            **os.environ,
            **self.variables,
            "PYTHONPATH": f"{self.site}:{ROOT}",
            "PYTHONSAFEPATH": "1",
        }
        result = subprocess.run([sys.executable, *program, *arguments], env=environment, cwd=cwd or self.site,
                                capture_output=True, text=True, timeout=200)  # fmt: skip
        assert result.returncode == code, f"{result.returncode}: {result.stdout}\n{result.stderr}"
        self.errors = result.stderr
        return result.stdout

    def json(self, *arguments, code=0):
        """The document that ``--json`` prints."""
        return json.loads(self.run(*arguments, "--json", code=code))

    def wheel(self, name, code=None, answer='Available("all well")', library="/nowhere/libx.so", suffix=""):
        """Install a distribution hvd-backend-NAME whose module is ``code``, or else a descriptor with this probe."""
        distribution, module = f"hvd-backend-{name}{suffix}", f"plugin_{name}{suffix}".replace("-", "_")
        text = DESCRIBE.format(name=name, library=library, answer=answer) if code is None else code
        (self.site / f"{module}.py").write_text(text)
        metadata = self.site / f"{distribution.replace('-', '_')}-1.5.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        (metadata / "entry_points.txt").write_text(f"[hvd_core.backends]\n{name} = {module}:describe\n")


@pytest.fixture
def hvd(tmp_path):
    """A CommandLine."""
    site = tmp_path / "site"
    site.mkdir()
    command = CommandLine(site)
    command.variables["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    return command
