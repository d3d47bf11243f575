"""Every distribution of the repository: what its metadata say, and what the tools of the package index say to it.

Source distributions are made of all, wheels of those without C++; the wheel of hvd-core is that of conftest.py.
"""

import email
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from harness.installed import need

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
PURE = {"horovod": "packages/horovod", "hvd-sparkdl": "packages/sparkdl"}
BACKENDS = {
    f"hvd-backend-{name.replace('_', '-')}": f"backends/{name}"
    for name in ("mpi", "gloo", "nccl", "eccl_stub")
}
ALL = {"hvd-core": ".", **PURE, **BACKENDS}
URLS = {"Homepage", "Documentation", "Source", "Changelog", "Issues"}

pytestmark = pytest.mark.timeout(900)


def pyproject(folder):
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


@pytest.mark.parametrize("folder", ALL.values(), ids=ALL)
def test_metadata_are_complete_and_alike(folder):
    found, core = pyproject(folder)["project"], pyproject(".")["project"]
    assert ALL[found["name"]] == folder
    for key in ("license", "license-files", "requires-python", "authors", "urls"):
        assert found[key] == core[key], key
    assert found["urls"].keys() == URLS
    assert found["description"] and found["keywords"] and "readme" in found
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    pythons = {name for name in core["classifiers"] if name.startswith("Programming Language :: Python")}
    assert pythons <= set(found["classifiers"])


def test_no_distribution_is_missing_here():
    named = {}
    for file in [ROOT / "pyproject.toml", *ROOT.glob("[bp]a*/*/pyproject.toml")]:
        named[tomllib.loads(file.read_text())["project"]["name"]] = file.parent.relative_to(ROOT).as_posix()
    # The template for libraries of host memory is in no wheel of its own.
    assert named.pop("hvd-backend-ohcl-stub") == "backends/ohcl_stub"
    assert named == ALL


def test_extras_require_what_exists():
    project = pyproject(".")["project"]
    extras = project["optional-dependencies"]
    assert {"torch", "tensorflow", "keras", "jax", "dev", "test", "all"} <= extras.keys()
    named = [name for listed in extras.values() for name in listed if name.startswith("hvd-core")]
    own = [re.fullmatch(r"hvd-core\[(.+)\]", name)[1].split(",") for name in named]
    assert {extra for listed in own for extra in listed} <= extras.keys()


@pytest.mark.parametrize("folder", ALL.values(), ids=ALL)
def test_pyproject_is_valid(folder):
    need("validate_pyproject")
    command = [sys.executable, "-m", "validate_pyproject", str(ROOT / folder / "pyproject.toml")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distributions of all, and the wheels of those without C++, made by their build backends."""
    build = pytest.importorskip("build", reason="building needs the extra test")
    pytest.importorskip("scikit_build_core", reason="building needs what is in requirements/build.txt")
    folder = tmp_path_factory.mktemp("distributions")
    for name, place in ALL.items():
        builder = build.ProjectBuilder(ROOT / place, runner=quiet)
        builder.build("sdist", folder)
        if name in PURE:
            # From the source distribution, so that the checkout stays as it is.
            (source,) = folder.glob(f"{name.replace('-', '_')}-*.tar.gz")
            with tarfile.open(source) as archive:
                archive.extractall(folder / name)
            (unpacked,) = (folder / name).iterdir()
            build.ProjectBuilder(unpacked, runner=quiet).build("wheel", folder)
    return folder


def quiet(command, cwd=None, extra_environ=None):
    made = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(extra_environ or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stdout + made.stderr


def metadata(path):
    """The metadata and the names of all files of a wheel or a source distribution."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            (name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            text = archive.read(name)
    else:
        with tarfile.open(path) as archive:
            names = archive.getnames()
            text = archive.extractfile(f"{names[0].partition('/')[0]}/PKG-INFO").read()
    return email.message_from_binary_file(io.BytesIO(text)), names


@pytest.mark.parametrize("name", ALL)
def test_distributions_have_licence_and_addresses(built, name):
    paths = list(built.glob(f"{name.replace('-', '_')}-*.*"))
    assert len(paths) == 1 + (name in PURE), paths
    for path in paths:
        found, names = metadata(path)
        assert found["Name"] == name and found["License-Expression"] == "Apache-2.0"
        assert found.get_all("License-File") == ["LICENSE"]
        assert {line.partition(",")[0] for line in found.get_all("Project-URL")} == URLS
        assert any(re.search(r"(^[^/]*|\.dist-info/licenses)/LICENSE$", name) for name in names)


def test_source_distribution_has_what_a_packager_needs_and_no_leftovers(built):
    (path,) = built.glob("hvd_core-*.tar.gz")
    names = {name.partition("/")[2] for name in metadata(path)[1]}
    assert {"CMakeLists.txt", "Makefile", "README.md", "hvd_core/version.py", "tests/conftest.py"} <= names
    surplus = r"(^|/)(build|out|dist|__pycache__|\.venv|\.git|\.github)/|\.(so|o|pyc|pt|whl)$"
    assert sorted(name for name in names if re.search(surplus, name)) == []


def test_the_index_would_take_them(built, wheel):
    need("twine")
    paths = [str(path) for path in (*built.glob("*.tar.gz"), *built.glob("*.whl"), wheel)]
    made = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *paths],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert made.returncode == 0 and made.stdout.count("PASSED") == len(paths), made.stdout + made.stderr


def test_contents_of_wheels(built, wheel):
    need("check_wheel_contents")
    paths = [str(path) for path in (*built.glob("*.whl"), wheel)]
    command = [sys.executable, "-m", "check_wheel_contents", *paths]  # pyproject.toml has the exceptions
    made = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert made.returncode == 0, made.stdout + made.stderr


def test_an_environment_with_the_wheel_is_consistent(clean):
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(clean.python),
        "check",
    ]
    made = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert made.returncode == 0, made.stdout + made.stderr
