"""The README's promises that a machine can check: its two commands and its links.

The suite running at all shows that `make test` works; what `make train` starts is run by tests/system/examples.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_readme_commands_are_targets_of_the_makefile():
    commands = re.findall(r"^make (\S+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert commands == ["train", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in commands:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)


def test_train_starts_the_example_on_two_processes():
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    result = subprocess.run(["make", "-n", "train"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    assert "horovodrun -np 2 python examples/pytorch_digits.py" in result.stdout


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    assert [target for target in targets if not _leads_somewhere(target)] == []


def _leads_somewhere(target):
    """Whether the file is there, and the heading if the target names one."""
    file, _, anchor = target.partition("#")
    if not anchor or not (ROOT / file).exists():
        return (ROOT / file).exists()
    headings = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.MULTILINE)
    return anchor in [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
