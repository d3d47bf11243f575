"""The README's promises that a machine can check: its two commands, its links, and the example it points to.

That `make test` works is shown by this suite running at all; the command line of `make train` is run here as
it stands in the Makefile, on the environment at hand.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "pytorch_digits.py"


def test_readme_commands_are_targets_of_the_makefile():
    commands = re.findall(r"^make (\S+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert commands == ["train", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in commands:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    assert [target for target in targets if not (ROOT / target).exists()] == []


def launchers():
    """Argument lists that start two ranks, each followed by the script."""
    found = [
        pytest.param(
            [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable], id="horovodrun"
        )
    ]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "29631",
    ]
    found.append(pytest.param(torchrun, id="torchrun"))
    mpirun = ["mpirun", "-np", "2", sys.executable]
    found.append(pytest.param(mpirun, id="mpirun", marks=pytest.mark.mpi))
    return found


def accuracy_of(output):
    match = re.search(r"test accuracy ([\d.]+) %, (\d+) samples/s", output)
    assert match, f"no final line in:\n{output[-4000:]}"
    return float(match[1])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", launchers())
def test_example_trains_on_two_processes(launcher, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the example trains with torch")
    pytest.importorskip("sklearn", reason="the example's data set comes with scikit-learn")
    # Settings of the two MPIs for a container: root, and more ranks than cores.
    for name in (
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "PRTE_MCA_rmaps_default_mapping_policy",
    ):
        monkeypatch.setenv(name, ":oversubscribe" if name.startswith("PRTE") else "1")
    command = [*launcher, str(EXAMPLE), "--output", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert accuracy_of(result.stdout) >= 97.0
    assert (tmp_path / "out" / "checkpoint.pt").stat().st_size > 100_000
    assert (tmp_path / "out" / "training.png").read_bytes().startswith(b"\x89PNG")
    assert "2 process(es)" in result.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [1, pytest.param(3, marks=pytest.mark.slow), 4])
def test_example_trains_on_other_numbers_of_processes(processes, tmp_path):
    pytest.importorskip("torch", reason="the example trains with torch")
    pytest.importorskip("sklearn", reason="the example's data set comes with scikit-learn")
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(processes), sys.executable]
    command = [*launcher, str(EXAMPLE), "--output", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert accuracy_of(result.stdout) >= 97.0


def test_make_is_what_the_readme_assumes():
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    result = subprocess.run(["make", "-n", "train"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "horovodrun -np 2 python examples/pytorch_digits.py" in result.stdout
