"""Messages and pages name the source of a wheel, because nobody owns the names of ours on the public index."""

import re
from pathlib import Path

import pytest

from hvd_core._config import hints
from hvd_core._config.hints import pip_install

ROOT = Path(__file__).resolve().parents[4]
# pip with one of our names, and neither a file, a reference (`@`) nor the options that exclude the public index.
BY_NAME = re.compile(
    r"pip3? (?:install|download)(?!.*--no-index)(?!.*--index-url)(?!.* @ )(?: -\S+| [\w.\[\]-]+)* ['\"]?"
    r"(?:hvd-(?:core|sparkdl|backend-[a-z_@-]+)|horovod)(?=[\s'\"=<>\[`),]|$)"
)


def test_the_source_is_in_the_command(monkeypatch):
    monkeypatch.delenv(hints.VARIABLE, raising=False)
    assert pip_install("hvd-core", "-U").startswith(
        "pip install --no-index --find-links WHEELS -U hvd-core (WHEELS: "
    )
    monkeypatch.setattr(hints, "SOURCE", "https://x/wheels")
    assert pip_install("x>=2") == "pip install --no-index --find-links https://x/wheels 'x>=2'"


@pytest.mark.parametrize(
    "value, where",
    [
        ("/srv/our wheels", "--no-index --find-links '/srv/our wheels'"),
        ("--index-url https://x/simple", "--index-url https://x/simple"),
    ],
)
def test_a_site_names_its_source(monkeypatch, value, where):
    monkeypatch.setenv("HOROVOD_WHEELS", value)
    assert pip_install("hvd-backend-nccl") == f"pip install {where} hvd-backend-nccl"


@pytest.mark.parametrize(
    "line, found",
    [
        ("pip install hvd-core build", True),
        ("pip install -U 'hvd-core[metrics]'", True),
        ("(`pip install hvd-backend-nccl` for cuda)", True),
        ("pip install --find-links dist horovod==0.29.0", True),
        ("pip install build hvd-core", True),
        ("pip install --no-index --find-links WHEELS hvd-core", False),
        ("pip install wheels/hvd_core-*.whl torch", False),
        ("pip installs hvd-core first", False),
    ],
)
def test_what_counts_as_a_name(line, found):
    assert bool(BY_NAME.search(line)) is found


def test_no_page_and_no_source_installs_our_names_from_an_index():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("packages/**/*.md")]
    ours = [path for name in ("hvd_core", "horovod", "backends") for path in (ROOT / name).rglob("*")]
    sources = [path for path in ours if path.suffix in (".py", ".md", ".cc", ".toml")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (*pages, *sources)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if BY_NAME.search(line) and "0.28.1" not in line  # the original, which is on PyPI
    ]
    assert found == []
