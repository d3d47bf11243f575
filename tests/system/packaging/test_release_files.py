"""What is released, checked and tested is named in several files: they agree."""

import re
from pathlib import Path

import pytest
import yaml

import hvd_core

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MINORS = [
    int(found[1])
    for name in PROJECT["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", name))
]


def jobs(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"]


def commands(path):
    """What the steps of a workflow run."""
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "RELEASING.md"], ids=lambda path: path.stem)
def test_what_make_is_asked_for_is_in_the_makefile(path):
    texts = commands(path) if path.suffix == ".yml" else [path.read_text()]
    asked = {
        target for text in texts for target in re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.MULTILINE)
    }
    assert asked
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert asked <= targets


def test_pythons_are_the_same_everywhere():
    assert list(range(MINORS[0], MINORS[-1] + 1)) == MINORS
    assert PROJECT["requires-python"] == f">=3.{MINORS[0]}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py3{MINORS[0]}"
    assert PYPROJECT["tool"]["cibuildwheel"]["build"] == [f"cp3{minor}-*" for minor in MINORS]
    assert jobs("test")["test"]["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in MINORS]


def test_versions_are_the_same_everywhere():
    released = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == hvd_core.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == hvd_core.__version__


def test_addresses_are_the_same_everywhere():
    address = PROJECT["urls"]["Source"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["repository-code"] == address
    config = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text())
    assert [link["url"] for link in config["contact_links"]] == [f"{address}/security/advisories/new"]


def test_pre_commit_runs_the_versions_of_make_lint():
    """All but mypy, which reads PyTorch and NumPy."""
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    pinned = {pin for hook in repo["hooks"] for pin in hook["additional_dependencies"]}
    dev = [pin for pin in PROJECT["optional-dependencies"]["dev"] if not pin.startswith(("mypy", "types-"))]
    assert pinned - {"tomli; python_version < '3.11'"} == set(dev)
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    for hook in repo["hooks"]:
        tool, *options = hook["entry"].replace(" --force-exclude", "").split()
        assert re.search(rf"/{' '.join([tool, *options])}\b", lint), hook["entry"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_write_only_where_they_must(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    writing = [name for name, job in workflow["jobs"].items() if "permissions" in job]
    assert writing == (["draft"] if path.stem == "wheels" else [])
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_the_wheels_are_tried_by_a_program_that_exists():
    command = PYPROJECT["tool"]["cibuildwheel"]["test-command"]
    path, function = re.search(r"\{project\}/(\S+) (\w+)$", command).groups()
    assert f"def {function}():" in (ROOT / path).read_text()
