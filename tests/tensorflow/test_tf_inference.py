"""What has been trained with Horovod is loaded and used where there is no Horovod."""

import os
import subprocess

import pytest

pytest.importorskip("tensorflow")

from tf_launch import HERE, PYTHON, QUIET, launch


@pytest.mark.timeout(700)
def test_models_load_where_horovod_cannot_be_imported(tmp_path):
    launch(2, [PYTHON, str(HERE / "inference_training.py"), str(tmp_path)], timeout=380)
    done = subprocess.run(
        [PYTHON, str(HERE / "inference_program.py"), str(tmp_path)],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "loaded without horovod" in done.stdout
