"""``hvd plugin new NAME --device cpu``: a backend of host memory that works at once; and the pages that it needs."""

import json
import os
import re
import subprocess
import sys

import pytest

import job_programs
from command_line import ROOT
from compiled import compiled, cxx
from harness.frameworks import horovodrun
from launchers import program_words

CASES = ("L2.allgatherv", "L3.ownership", "L4.abort", "L4.killed_rank")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    words = [sys.executable, "-m", "hvd_core._cli", "plugin", "new", "acme", "--device", "cpu"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=200, env=environment())
    assert done.returncode == 0, done.stderr
    return folder / "hvd-backend-acme"


@pytest.fixture(scope="module")
def library(project):
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    sources = [*sorted((project / "csrc").glob("*.cc")), project / "library" / "acme.cc"]
    include = [ROOT / "hvd_core" / "include", project / "library"]
    return compiled("libacme.so", [cxx(), *flags], sources, include, ["-pthread", "-lrt"])


def environment(**more):
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **more}


def test_the_project_is_small_and_the_author_s_alone(project):
    lines = 0
    for path in project.rglob("*"):
        if not path.is_file():
            continue
        text = path.read_text()
        assert re.search(r"ohcl|nodevicetype|noruntimeprefix", f"{path}\n{text}", re.IGNORECASE) is None, path
        # The library stands for the author's own.
        if path.name not in ("README.md", "LICENSE") and path.parent.name != "library":
            lines += text.count("\n")
    assert lines <= 400
    assert "hvd plugin check acme --case L4.abort" in (project / "csrc" / "acme_comm.cc").read_text()
    assert "HOROVOD_BACKEND=cpu=acme horovodrun" in (project / "README.md").read_text()


def kit(library, *options):
    words = [sys.executable, "-m", "hvd_core.conformance", "acme", "-np", "2", "--quick", "--patience", "3"]
    words += ["--library", str(library), "--json", "-", *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment())
    return {case["case"]: case["verdict"] for case in json.loads(done.stdout)["cases"]}, done


def test_it_passes_the_kit(library):
    verdicts, done = kit(library, *(word for case in CASES for word in ("--case", case)))
    assert set(verdicts.values()) == {"PASS"}, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_it_passes_the_whole_kit(library):
    verdicts, done = kit(library, *(word for level in range(5) for word in ("--level", f"L{level}")))
    assert "FAIL" not in verdicts.values(), done.stdout
    assert verdicts["L2.alltoallv"] == "EMULATED"


def test_a_job_computes_with_it(library):
    launch = [*horovodrun(2), *program_words(job_programs.sum_and_exchange, python=())]
    variables = environment(HOROVOD_BACKEND="cpu=acme", HOROVOD_BACKEND_PATH_ACME=str(library))
    done = subprocess.run(launch, capture_output=True, text=True, timeout=300, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("{'acme'}") == 2, done.stdout


def test_pages_are_listed_and_printed(hvd):
    pages = {page["page"]: page for page in hvd.json("docs")}
    assert {"backend-abi", "what-to-return", "libraries-that-block", "conformance", "loopback"} <= set(pages)
    assert pages["libraries-that-block"]["title"] == "Libraries that cannot abort, throw, or own threads"
    assert hvd.run("docs", "plugins").startswith("# Plugins\n")
    assert "HVD_BACKEND(LOOPBACK_NAME" in hvd.run("docs", "loopback")
    hvd.run("docs", "plugin", code=2)
    assert "there is no page 'plugin'. Did you mean 'plugins'?" in hvd.errors
