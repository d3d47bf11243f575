"""Jobs of two ranks that call init() once per case (choosing_rank.py), in a folder of a test's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import hvd_core
from golden_texts import golden
from launchers import Launcher

HERE = Path(__file__).parent
# A mount namespace of its own in which /etc is a copy with this site's file in it.
IN_NAMESPACE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$0"
cp -a /etc/. "$0"
mkdir -p "$0/hvd"
cp "$1" "$0/hvd/plugins.toml"
chmod 644 "$0/hvd/plugins.toml"
mount --bind "$0" /etc
shift
exec "$@"
"""


PLUGIN = """
from hvd_core.backends import Available, BackendDescriptor, Unavailable

def describe():
    return BackendDescriptor(
        name="{name}", abi=(1, 0), devices=("{device}",), provides=frozenset({{"comm"}}), library=None,
        python="hvd_backend_{name}:Backend", requires=("lib{name}.so >= 3",), probe=probe,
    )

def probe():
    import os
    {probe}

def __getattr__(name):
    from hvd_core.backends._chaos import ChaosBackend
    return type("Backend", (ChaosBackend,), {{"name": "{name}", "version": "{version}"}})
"""


def plugin(site, name, probe="return Available()", version="0.3.0", device="cpu", automatic=False):
    """A wheel's files in ``site``: a backend in Python that computes, unless its probe says no."""
    site.mkdir(exist_ok=True)
    text = PLUGIN.format(name=name, probe=probe, version=version, device=device)
    if automatic:  # as if it were compiled: it would have to be loaded to be found out
        text = text.replace("library=None", f"library=Path('/nowhere/lib{name}.so')").replace(
            f'python="hvd_backend_{name}:Backend", ', ""
        )
    (site / f"hvd_backend_{name}.py").write_text("from pathlib import Path\n" + text)
    described = f'abi = [1, 0]\ndevices = ["{device}"]\nprovides = ["comm"]\ndevice_files = ["/"]\n'
    (site / f"{name}.hvd.toml").write_text(described)
    info = site / f"hvd_backend_{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hvd-backend-{name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[hvd_core.backends]\n{name} = hvd_backend_{name}:describe\n")


def why_no_site():
    """Why a job here cannot have a site file; None if it can."""
    if os.geteuid() != 0:
        return "a site file in /etc needs root and a mount namespace"
    done = subprocess.run(
        ["unshare", "--mount", "mount", "--make-rprivate", "/"], capture_output=True, text=True
    )
    return f"no mount namespace can be made here: {done.stderr.strip()}" if done.returncode else None


def hide(site, name):
    """Has the project's own wheel of this name, where it is installed, count as one without a backend: of two wheels of
    one name the first on the path counts. The messages about the project's wheel would differ from machine to machine."""
    info = site / f"hvd_backend_{name}-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hvd-backend-{name}\nVersion: 0\n")


class Job:
    def __init__(self, folder, site_file=None):
        self.folder = folder
        hide(folder / "site", "nccl")
        enter = ()
        if site_file is not None:
            (folder / "etc").mkdir()
            path = folder / "site_file.toml"
            path.write_text(site_file)
            enter = ("unshare", "--mount", "sh", "-c", IN_NAMESPACE, folder / "etc", path)
        self.launcher = Launcher(folder, [str(word) for word in enter])

    def run(self, cases):
        """The results of all cases: {name: [rank 0's, rank 1's]}."""
        (self.folder / "cases.json").write_text(
            json.dumps([{"name": n, **case} for n, case in cases.items()])
        )
        words = ("-np", 2, sys.executable, HERE / "choosing_rank.py", self.folder / "cases.json")
        env = self.environment()
        done = self.launcher.run(*words, env=env, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        ranks = [json.loads((self.folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
        self.results = {name: [rank[name] for rank in ranks] for name in cases}
        return self.results

    def environment(self):
        """The variables of a job's ranks: the plugins in "site", and no configuration of the user who runs the tests."""
        paths = [str(self.folder / "site"), str(Path(hvd_core.__file__).resolve().parents[1])]
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        return {"PYTHONPATH": os.pathsep.join(paths), "HOME": str(self.folder), "XDG_CONFIG_HOME": ""}

    def chosen(self, name, device="cpu"):
        """The choice of a case for a device type (None: for all), which both ranks have made."""
        first, second = self.results[name]
        assert "chosen" in first and first["chosen"] == second.get("chosen"), self.results[name]
        return [text for text in first["chosen"] if device is None or text.startswith(f"{device}: ")]

    def refused(self, name, kind, both=True):
        """Compares the text with golden/job_NAME.txt."""
        first, second = self.results[name]
        assert first.get("error") == kind, self.results[name]
        if both:
            assert second == first
        host = (os.uname().nodename, "HOST")
        golden(f"job_{name}", first["text"], folder=self.folder, also=[host])
