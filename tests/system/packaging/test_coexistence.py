"""The original horovod distribution beside hvd-core is reported, once, and only if it is there."""

import os
import subprocess
import sys


def run_init(path=None):
    code = "from horovod.common.basics import HorovodBasics as B; b = B(); b.init(); b.shutdown(); b.init()"
    env = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=200
    )


def test_original_distribution_is_reported(tmp_path):
    folder = tmp_path / "horovod-0.28.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    said = run_init(tmp_path).stderr
    assert said.count("The original horovod 0.28.1 is installed beside hvd-core") == 1


def test_the_wheel_of_that_name_that_requires_hvd_core_is_no_original(tmp_path):
    folder = tmp_path / "horovod-0.29.0.dist-info"
    folder.mkdir()
    head = "Metadata-Version: 2.1\nName: horovod\nVersion: 0.29.0\n"
    (folder / "METADATA").write_text(f"{head}Requires-Dist: hvd-core==0.29.0\n")
    assert run_init(tmp_path).stderr == ""


def test_silence_without_it():
    done = run_init()
    assert done.stderr == "" and done.stdout == ""
