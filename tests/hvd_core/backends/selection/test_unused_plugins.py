"""Plugins that are installed and not used: no job notices them, on machines with their devices and without. Those that
the automatic choice needs are tried in a process of their own. Real jobs, plugins with one fault each
(plugin_faults.py)."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import unused_plugins
from choosing_job import hide
from harness.frameworks import horovodrun
from launchers import program_words

sys.path.append(str(Path(__file__).resolve().parents[3] / "hvd_core/cli"))

from plugin_faults import FAULTS, STATIC, install

ROOT = Path(__file__).resolve().parents[4]
HERE = STATIC.replace("/dev/no-such-widget*", "/")  # a file that is there, as on a machine with the devices
NAMED = {fault.name: fault for fault in FAULTS}
SILENT = ("horovod", "WARNING", "Traceback", "banner")


class Site:
    """Faulty plugins in a folder, as pip would leave them, and jobs that see them."""

    def __init__(self, folder):
        self.folder, self.site = folder, folder / "site"
        self.site.mkdir()
        hide(self.site, "nccl")

    def wheel(self, name, code):
        module = f"hvd_backend_{name.replace('-', '_')}"
        (self.site / f"{module}.py").write_text(code)
        info = self.site / f"{module}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hvd-backend-{name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[hvd_core.backends]\n{name} = {module}:describe\n")

    def install(self, fault):
        return install(SimpleNamespace(wheel=self.wheel, site=self.site), fault, self.folder)

    def imported(self):
        return sorted(path.name.removeprefix("imported-") for path in self.folder.glob("imported-*"))

    def run(self, function, *arguments, ranks=1, **variables):
        """A finished job."""
        start = [sys.executable] if ranks == 1 else horovodrun(ranks)
        paths = [str(self.site), str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}
        return subprocess.run(
            [*start, *program_words(function, *arguments, python=())],
            env=env, capture_output=True, text=True, timeout=300, cwd=self.folder,
        )  # fmt: skip

    def probe_limit(self, seconds):
        file = self.folder / "plugins.toml"
        file.write_text(f"[probe]\ntimeout_s = {seconds}\n")
        return {"HOROVOD_PLUGINS_TOML": str(file)}


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.mark.parametrize("ranks", [1, 2], ids=["alone", "horovodrun"])
@pytest.mark.parametrize("static", [HERE, STATIC, None], ids=["device-here", "no-device", "undescribed"])
def test_a_job_does_not_notice_plugins_that_it_does_not_use(site, static, ranks):
    for fault in FAULTS:
        site.install(replace(fault, static=static))
    done = site.run(unused_plugins.sum_on_the_host, ranks=ranks)
    assert (done.returncode, done.stdout.count("unharmed")) == (0, ranks), done.stderr
    assert site.imported() == []
    assert not any(word in done.stderr for word in SILENT), done.stderr


# Kinds of faults in each phase; the last ones hang, to the limit of their phase.
KINDS = (
    "d_raises", "d_leaves", "d_crashes", "d_prints", "d_closes", "d_killed", "d_nothing", "p_no", "p_raises", "p_leaves",
    "p_crashes", "l_text", "l_constructor_exits", "l_entry_crashes", "l_entry_exits", "l_entry_fails", "d_hangs",
    "p_hangs",
)  # fmt: skip


def test_those_of_a_device_that_comes_are_tried_apart(site):
    names = {site.install(replace(NAMED[kind], static=HERE)): NAMED[kind] for kind in KINDS}
    done = site.run(unused_plugins.use_widget, **site.probe_limit(0.5))
    assert done.returncode == 0 and "unharmed" in done.stdout, done.stdout + done.stderr
    why = done.stdout.partition("why: ")[2].splitlines()[0]
    for name, fault in names.items():
        (told,) = [part for part in why.split("; backend ") if f"'{name}'" in part]
        assert fault.says in told, told
        assert "its process" not in fault.says or f"in the phase {fault.phase}" in told, told
    assert set(site.imported()) == set(names)
    assert "a banner" not in done.stdout + done.stderr


def test_without_the_device_they_are_not_tried(site):
    site.install(NAMED["d_crashes"])
    done = site.run(unused_plugins.use_widget)
    assert done.returncode == 0 and "this machine has none of the files of such devices" in done.stdout
    assert site.imported() == []


@pytest.mark.parametrize("kind", ["d_hangs", "l_constructor_hangs"])
def test_a_named_one_that_hangs_is_named_and_ended_within_the_start_timeout(site, kind):
    name = site.install(NAMED[kind])
    variables = {"HOROVOD_BACKEND": name, "HOROVOD_START_TIMEOUT": "4"}
    done = site.run(unused_plugins.sum_on_the_host, ranks=2, **variables)
    assert done.returncode == 1, done.stderr
    phase = NAMED[kind].phase
    assert (
        f"the phase {phase} of backend '{name}' has not come back within 3.6 s (HOROVOD_START_TIMEOUT)"
        in done.stderr
    )
    assert f"has ended in the phase {phase} of backend '{name}'" in done.stderr
