"""Runs ``hvd`` as its users do, and makes the wheels that it is to find, as pip would leave them."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from hvd_core._cli import main
from hvd_core.backends import _discovery

ROOT = Path(__file__).resolve().parents[3]

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


def _fork(function, output, errors):
    """The exit code of a child of this process that returns ``function()``; it writes to these files."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for file, number in ((output, 1), (errors, 2)):
                os.dup2(file.fileno(), number)
            # Open until the end of this process.
            sys.stdin = open(os.devnull)  # noqa: SIM115
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            code = function()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class CommandLine:
    """``hvd`` in an environment with a site folder of its own; ``variables`` are added to the environment."""

    def __init__(self, site: Path) -> None:
        self.site, self.variables = site, {}

    def run(self, *arguments, code=0, cwd=None, program=None):
        """Standard output of one run that must end with ``code``. The run is a fork of this process, which has imported
        the command; ``program``, options of Python, starts another interpreter instead."""
        environment = {
            **os.environ,
            **self.variables,
            "PYTHONPATH": f"{self.site}:{ROOT}",
            "PYTHONSAFEPATH": "1",
        }
        folder = str(cwd or self.site)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            if program is None:
                found = _fork(lambda: self._main(arguments, environment, folder), output, errors)
            else:
                command = [sys.executable, *program, *arguments]
                found = subprocess.run(
                    command, env=environment, cwd=folder, stdout=output, stderr=errors, timeout=200
                ).returncode
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode())
        text, self.errors = texts
        assert found == code, f"{found}: {text}\n{self.errors}"
        return text

    def _main(self, arguments, environment, folder):
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["hvd", *arguments]
        sys.path[:] = [str(self.site), str(ROOT), *(path for path in sys.path if path)]
        importlib.invalidate_caches()
        _discovery.forget()  # found by earlier tests
        return main(list(map(str, arguments)))

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
