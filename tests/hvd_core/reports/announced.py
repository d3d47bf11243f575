"""Folders with distributions in them, as pip would leave them: backends and frameworks that reports are to find."""

import os
import subprocess
from pathlib import Path
from textwrap import dedent

import horovod
from launchers import program_words

PACKAGES = str(Path(horovod.__file__).resolve().parents[1])

BACKEND = """
from pathlib import Path
from hvd_core.backends import Available, BackendDescriptor, Unavailable

def describe():
    return BackendDescriptor(
        name="{name}", abi=(1, 0), devices={devices}, provides=frozenset({provides}), library=Path("{library}"),
        launchers={launchers}, probe=probe)

def probe():
    {probe}
"""

# A backend that computes, under a name that the test gives, for jobs of the launchers that it names.
IN_PYTHON = """
from hvd_core.backends import BackendDescriptor

def describe():
    return BackendDescriptor(
        name="{name}", abi=(1, 0), devices=("cpu",), provides=frozenset({{"comm"}}), library=None,
        python="{module}:Backend", launchers={launchers})

def __getattr__(name):
    from hvd_core.backends._chaos import ChaosBackend
    return type("Backend", (ChaosBackend,), {{"name": "{name}", "version": "1.5"}})
"""


def distribution(site, name, version, module, code, entry_points=""):
    """A distribution of one module in ``site``."""
    (site / f"{module}.py").write_text(dedent(code))
    metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry_points:
        (metadata / "entry_points.txt").write_text(entry_points)


def hide_installed(site):
    """The same distributions without a backend in them, first on the path: those that the tests' environment has
    installed do not count. backend() puts a backend in."""
    for name in ("mpi", "gloo", "nccl", "eccl-stub"):
        distribution(site, f"hvd-backend-{name}", "1.5", f"announced_{name}".replace("-", "_"), "")


def backend(
    site,
    name,
    code=BACKEND,
    devices=("cpu",),
    provides=("comm",),
    probe="return Available()",
    launchers=(),
    library=__file__,  # any file that exists: nothing loads it
):
    """A wheel hvd-backend-NAME 1.5. ``code``: the module, with the other arguments in it."""
    module = f"announced_{name}"
    filled = code.format(
        name=name,
        devices=tuple(devices),
        provides=set(provides),
        probe=probe,
        launchers=tuple(launchers),
        library=library,
        module=module,
    )
    entry = f"[hvd_core.backends]\n{name} = {module}:describe\n"
    distribution(site, f"hvd-backend-{name}", "1.5", module, filled, entry)


def environment(site, **variables):
    """The environment of a process with ``site`` on its path, and no configuration of the user who runs the tests."""
    paths = [str(site), PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HOME": str(site),
        "XDG_CONFIG_HOME": "",
        **variables,
    }


def run(words, site, **variables):
    """A finished process, outputs as text."""
    return subprocess.run(
        [str(word) for word in words],
        env=environment(site, **variables),
        cwd=site.parent,  # a folder that is on the path only as the current one does not count
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )


def python(program, site, *words, **variables):
    """A finished Python with `program`, a text or a function as program_words() takes it; it must end well."""
    done = run(program_words(program, *words), site, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
