"""The wheel named horovod (packages/horovod): what it requires, what pip does with it, how a loss of files is noticed."""

import shutil
import site
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import hvd_core
from clean_environment import CleanEnvironment
from harness.installed import need
from hvd_core._base import install_check

ROOT = Path(__file__).resolve().parents[3]
INSTALLED_PROGRAMS = str(Path(__file__).with_name("installed_programs.py"))
STARTUP = "horovod-of-hvd-core.pth"
OURS = f"horovod=={hvd_core.__version__}"
# Names of files that both distributions have.
SHARED = ("horovod/__init__.py", "horovod/torch/__init__.py", "horovod/common/util.py")

pytestmark = pytest.mark.timeout(600)


def write_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = (), files=None) -> None:
    """A wheel with these files; every distribution has a file of its own besides."""
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    contents = {
        **(files or {}),
        f"{name}_{version.replace('.', '_')}.txt": "a file of no other distribution",
        f"{info}/METADATA": "\n".join(lines + [f"Requires-Dist: {text}" for text in requires]) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


@pytest.fixture(scope="module")
def marker(tmp_path_factory):
    """The wheel of packages/horovod."""
    pytest.importorskip("setuptools", minversion="77", reason="building the wheel needs setuptools")
    folder = tmp_path_factory.mktemp("marker")
    source = shutil.copytree(
        ROOT / "packages" / "horovod",
        folder / "packages" / "horovod",
        ignore=shutil.ignore_patterns("build", "*.egg-info"),
    )
    (folder / "hvd_core").mkdir()
    shutil.copy(ROOT / "hvd_core" / "version.py", folder / "hvd_core")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    made = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stdout + made.stderr
    (path,) = folder.glob("horovod-*.whl")
    return path


@pytest.fixture(scope="module")
def index(wheel, marker, tmp_path_factory):
    """A folder for --find-links: hvd-core, the two distributions horovod, and a program that requires one of them."""
    folder = tmp_path_factory.mktemp("index")
    for path in (wheel, marker):
        shutil.copy(path, folder)
    write_wheel(folder, "client", "1.0", ("horovod[pytorch]>=0.27",))
    write_wheel(folder, "horovod", "0.28.1", files=dict.fromkeys(SHARED, "origin = 'another project'\n"))
    return folder


@pytest.fixture(scope="module")
def environment(index, tmp_path_factory):
    """A clean environment with pip and all that hvd-core and the extra pytorch require, and none of these themselves."""
    need("torch")
    made = CleanEnvironment(tmp_path_factory.mktemp("replacing") / "venv")
    for requirement in ("pip", "torch>=2.4", *(metadata.requires("hvd-core") or ())):
        made.borrow(requirement)
    return made


@pytest.fixture
def pip(environment, index):
    """pip of the clean environment, with the local index; returns its output."""

    def run(*words: str) -> str:
        command = [str(environment.python), "-m", "pip", "--disable-pip-version-check", *words]
        return environment.run(*command, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))

    left = (path for name in ("horovod", "hvd_core") for path in environment.site.glob(f"{name}-*.dist-info"))
    if any(left):  # an earlier test has installed them
        run("uninstall", "-y", "client", "horovod", "hvd-core")
    return run


def python(environment, program: str) -> str:
    return environment.run(str(environment.python), "-c", program)


def test_the_wheel_requires_hvd_core_of_its_version_and_has_no_package(marker):
    with zipfile.ZipFile(marker) as wheel:
        own = [name for name in wheel.namelist() if ".dist-info/" not in name]
        (path,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        lines = wheel.read(path).decode().splitlines()
    assert own == [STARTUP]
    assert f"Version: {hvd_core.__version__}" in lines
    assert [line for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line] == [
        f"Requires-Dist: hvd-core=={hvd_core.__version__}"
    ]
    extras = {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra")}
    frameworks = {"pytorch", "tensorflow", "keras", "mxnet", "spark", "ray", "all-frameworks"}
    assert extras == frameworks | {"mpi", "gloo", "nccl"}


def test_a_program_that_requires_horovod_gets_hvd_core(environment, pip):
    pip("install", "--no-compile", "client", OURS)
    said = environment.run(str(environment.python), INSTALLED_PROGRAMS, "print_versions")
    words = said.split()
    assert words[:3] == [hvd_core.__version__] * 3, said
    assert words[3:] == [str(environment.site / SHARED[0])], "no warning, and the package of the wheel"


@pytest.mark.slow
def test_an_installation_over_the_original_is_noticed_and_cured_and_there_is_a_way_back(environment, pip):
    pip("install", "client", "horovod==0.28.1")
    assert python(environment, "import horovod; print(horovod.origin)") == "another project\n"
    pip("install", OURS)
    # pip installs hvd-core first, as the other requires it, and removes the original's files afterwards.
    assert not any((environment.site / name).exists() for name in SHARED)
    lines = python(environment, "pass").splitlines()
    assert len(lines) == 2 and f"files of hvd-core are missing in {environment.site}" in lines[0], lines
    interpreter, *words = lines[1].split()
    assert interpreter == str(environment.python) and words[:2] == ["-m", "pip"]
    pip(*words[2:])
    assert python(environment, "import horovod.torch as hvd; hvd.init(); print(hvd.size())") == "1\n"

    pip("uninstall", "-y", "horovod", "hvd-core")
    pip("install", "horovod==0.28.1")
    assert python(environment, "import horovod; print(horovod.origin)") == "another project\n"
    assert not (environment.site / STARTUP).exists()


@pytest.mark.slow
def test_the_documented_order_of_commands_loses_nothing(environment, pip):
    pip("install", "horovod==0.28.1")
    pip("uninstall", "-y", "horovod")
    pip("install", OURS)
    assert python(environment, "import horovod.torch as hvd; hvd.init(); print(hvd.size())") == "1\n"


@pytest.fixture
def packages(tmp_path):
    """A folder of packages as pip leaves it, with hvd-core's install check and the startup file of the wheel."""
    info = tmp_path / "hvd_core-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hvd-core\nVersion: 1.2\n")
    (info / "RECORD").write_text(
        "".join(f"{name},,\n" for name in ("hvd_core/_base/install_check.py", *SHARED))
    )
    base = tmp_path / "hvd_core" / "_base"
    base.mkdir(parents=True)
    shutil.copy(install_check.__file__, base)
    shutil.copy(ROOT / "packages" / "horovod" / STARTUP, tmp_path)
    for name in SHARED:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    return tmp_path


def test_the_startup_file_reports_what_is_missing_once(packages, capsys):
    site.addpackage(str(packages), STARTUP, set())
    assert capsys.readouterr().err == ""
    for name in SHARED[:2]:
        (packages / name).unlink()
    for _ in range(2):  # as Python does for the folder of an environment
        site.addpackage(str(packages), STARTUP, set())
    said = capsys.readouterr().err
    assert said.count(f"2 files of hvd-core are missing in {packages} (horovod/__init__.py for one)") == 1
    assert said.endswith(" --no-index --find-links WHEELS --force-reinstall --no-deps hvd-core==1.2\n")


def test_hvd_core_itself_reports_where_there_is_no_startup_file(packages, capsys, monkeypatch):
    monkeypatch.setattr(install_check, "__file__", str(packages / "hvd_core" / "_base" / "install_check.py"))
    install_check.report_at_import()
    assert capsys.readouterr().err == ""
    (packages / SHARED[0]).unlink()
    install_check.report_at_import()
    assert "1 files of hvd-core are missing" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["metadata", "stderr", "archive"])
def test_a_hint_that_cannot_be_given_ends_nothing(packages, tmp_path, capsys, monkeypatch, broken):
    (packages / "horovod" / "__init__.py").unlink(missing_ok=True)
    site_folder = str(packages)
    if broken == "metadata":
        (record,) = packages.glob("hvd_core-*.dist-info/RECORD")
        record.write_bytes(b"\xff\xfe,,\n")
    elif broken == "stderr":
        monkeypatch.setattr(sys, "stderr", None)
    else:
        site_folder = shutil.make_archive(str(tmp_path / "packages"), "zip", packages)
    install_check.report(site_folder)
    assert capsys.readouterr().out == ""
