"""The command: exit status, table, JSON, JUnit, support matrix; inside a launcher's job; and as pytest classes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.timeout(400)
HERE = Path(__file__).parent


def run(command, **environment):
    paths = [str(HERE.parents[2]), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)


def kit(*arguments, command=None, **environment):
    """The command as a user starts it, on ranks that it starts; or another command with its arguments."""
    words = command or [sys.executable, "-m", "hvd_core.conformance"]
    return run([*words, *map(str, arguments)], **environment)


CASES = ("L0.tables", "L2.allreduce", "L2.send_recv", "L2.groups", "L4.split")
SELECTED = [word for name in CASES for word in ("--case", name)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    readme = folder / "README.md"
    readme.write_text(
        "# Mine\n\n<!-- support matrix: begin -->\nold\n<!-- support matrix: end -->\nThe end.\n"
    )
    files = [folder / "r.json", folder / "r.xml", readme]
    done = kit(
        "shm", "-np", 2, "--quick", *SELECTED, "--json", files[0], "--junit", files[1], "--matrix", files[2]
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, *files


def test_table(reports):
    lines = reports[0].splitlines()
    assert lines[0].endswith("conformance: backend shm (embedded), 2 ranks")
    words = dict(line.split()[1::-1] for line in lines if line.startswith("  ") and " L" in line)
    assert words == dict(zip(CASES, ("PASS", "PASS", "EMULATED", "EMULATED", "SKIPPED")))
    assert lines[-1] == "PASS: 2 pass, 2 emulated, 1 skipped"


def test_json(reports):
    data = json.loads(reports[1].read_text())
    assert (data["format"], data["backend"], data["ranks"]) == (1, "shm", 2)
    assert [c["case"] for c in data["cases"]] == list(CASES)
    assert data["summary"] == {"PASS": 2, "EMULATED": 2, "SKIPPED": 1}
    rows = {row["what"]: row["verdict"] for row in data["cases"][1]["rows"]}
    assert rows["int64 sum [cpu]"] == "NATIVE" and rows["float8_e5m2 sum [cpu]"] == "-"


def test_junit(reports):
    root = ElementTree.parse(reports[2]).getroot()
    assert [s.get("name") for s in root] == ["L0", "L2", "L4"]
    cases = {c.get("name"): c for c in root.iter("testcase")}
    assert list(cases) == list(CASES)
    assert cases["L4.split"].find("skipped").get("message").startswith("the table has no split")
    assert cases["L2.groups"].find("skipped") is None and cases["L2.groups"].find("failure") is None


def test_matrix_replaces_only_its_own_part(reports):
    text = reports[3].read_text()
    assert text.startswith("# Mine\n") and text.endswith("The end.\n") and "\nold\n" not in text
    assert "| | allreduce | send_recv |" in text
    assert "| int64 | NATIVE | EMULATED |" in text and "| float8_e5m2 | - | EMULATED |" in text


def test_matrix_does_not_overwrite_other_text(tmp_path):
    readme, new = tmp_path / "README.md", tmp_path / "matrix.md"
    readme.write_text("# Mine\n")
    done = kit("shm", "-np", 1, "--case", "L0.tables", "--matrix", readme)
    assert done.returncode == 2 and "its contents are not overwritten" in done.stderr
    assert "<!-- support matrix: begin -->" in done.stderr and "PASS" not in done.stdout
    assert readme.read_text() == "# Mine\n"
    assert kit("shm", "-np", 1, "--case", "L0.tables", "--matrix", new).returncode == 0
    assert new.read_text().startswith("<!-- support matrix: begin")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nope"], 3, "horovod: backend 'nope'"),
        (["shm", "--library", "/nowhere.so"], 3, "the library /nowhere.so does not exist"),
        (["shm", "--case", "L2.allredoce"], 2, "Did you mean 'L2.allreduce'?"),
        ([], 2, "name a backend"),
        (["shm", "--cases", "no_such_module"], 2, "no_such_module"),
    ],
    ids=["not installed", "no library", "no such case", "nothing", "no such module"],
)
def test_refusals(arguments, status, text):
    done = kit(*arguments)
    assert done.returncode == status and text in done.stderr


def test_list():
    done = kit("--list", "--level", "L4")
    assert done.returncode == 0 and "L4.killed_rank " in done.stdout and "L2." not in done.stdout


def test_a_failure_is_the_exit_status(shim, library_of, tmp_path):
    junit = tmp_path / "r.xml"
    done = kit(
        *("shm", "-np", 2, "--library", shim, "--case", "L2.broadcast", "--junit", junit),
        HVD_MUTANT="ignores_root",
        HVD_MUTANT_LIBRARY=str(library_of("shm")),
    )
    assert done.returncode == 1 and "FAIL     L2.broadcast" in done.stdout and "root 1: " in done.stdout
    assert "instead of" in ElementTree.parse(junit).getroot().find(".//failure").get("message")


def test_json_alone_on_standard_output():
    done = kit("shm", "-np", 1, "--case", "L0.identity", "--json", "-")
    assert json.loads(done.stdout)["summary"] == {"PASS": 1}


INSIDE = ("--quick", "--case", "L0.tables", "--case", "L2.broadcast", "--case", "L4.killed_rank")


def inside(command):
    done = run([*command, sys.executable, "-m", "hvd_core.conformance", "shm", *INSIDE])
    assert done.returncode == 0, done.stdout + done.stderr
    # Open MPI gives rank 0 a terminal, where the table has colours and lines end.
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m|\[0\]<stdout>:", " ", done.stdout).split())
    assert said.count("PASS L2.broadcast") == 1, "one rank reports for all"
    assert "backend shm (embedded), 3 ranks" in said
    assert "SKIPPED L4.killed_rank" in said and "the launcher would end the job" in said


def test_inside_a_job_of_horovodrun():
    inside([sys.executable, "-m", "horovod.runner.launch", "-np", "3"])


@pytest.mark.slow
@pytest.mark.mpi
def test_inside_a_job_of_mpirun(mpirun):
    inside([*mpirun, "-np", "3"])


VENDOR = """
from hvd_core.conformance import CommonCases

class TestMine(CommonCases):
    backend = "shm"
    library = {library!r}
    ranks = 2
    quick = True
    extra = ("own_cases",)
    environment = {{"HVD_MUTANT": "ignores_root", "HVD_MUTANT_LIBRARY": {real!r}}}

    def test_of_ones_own(self):
        pass
"""


def test_as_a_pytest_class(shim, library_of, tmp_path):
    (tmp_path / "test_vendor.py").write_text(VENDOR.format(library=str(shim), real=str(library_of("shm"))))
    chosen = "L2.broadcast or L4.split or X.adds or L0.tables or of_ones_own"
    options = ["-q", "-rA", "-p", "no:cacheprovider", "-k", chosen, f"--rootdir={tmp_path}"]
    done = run([sys.executable, "-m", "pytest", *options, str(tmp_path / "test_vendor.py")], COLUMNS="200")
    assert "1 failed, 3 passed, 1 skipped" in done.stdout, done.stdout
    assert "test_vendor.py::TestMine::test_conformance[L2.broadcast] - " in done.stdout
    assert "the table has no split" in done.stdout


@pytest.mark.parametrize("name", ["test_conformance", "conformance_session"])
def test_common_cases_cannot_be_replaced(name):
    from hvd_core.conformance import CommonCases

    with pytest.raises(TypeError, match="in capabilities and query what the backend does not serve"):
        type("TestNarrowed", (CommonCases,), {name: lambda self: None})
