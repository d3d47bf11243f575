"""The wheel that users install: built from the checkout, inspected, and used outside of the checkout.

Building shares the folder of the editable install that `make test` made, so that it costs one link.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
INSTALLED_PROGRAMS = str(Path(__file__).with_name("installed_programs.py"))

pytestmark = pytest.mark.timeout(900)  # from scratch, the build takes minutes on a small machine


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=840, **options)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


def test_wheel_holds_engine_backend_contract_and_api(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for expected in (
        "hvd_core/lib/libhvd_backend_shm.so",
        "hvd_core/lib/libhvd_backend_tcp.so",
        "hvd_core/include/hvd/backend_abi.h",
        "hvd_core/include/hvd/backend_slots.inc",
        "hvd_core/include/hvd/types.inc",
        "hvd_core/include/hvd/backend.hpp",
        "hvd_core/_runtime/runtime.py",
        "hvd_core/conformance/_command.py",
        "hvd_core/_cli/project_readme.md",
        "hvd_core/template/template.toml",
        "hvd_core/simulators/eccl/include/eccl.h",
        "hvd_core/simulators/ohcl/ohcl.cc",
        "hvd_core/template_host/src/hvd_backend_ohcl_stub/ohcl_stub.hvd.toml",
        "hvd_core/docs/backend-abi.md",
        "hvd_core/docs/loopback.cc",
        "hvd_core/plugins.toml",
        "hvd_core/_bootstrap/__init__.py",
        "hvd_core/backends/__init__.py",
        "horovod/__init__.py",
        "horovod/py.typed",
        "hvd_core/_core.pyi",
        "hvd_core/py.typed",
        "horovod/torch/__init__.py",
        "horovod/common/__init__.py",
        "horovod/runner/launch.py",
    ):
        assert expected in names
    assert len([name for name in names if name.startswith("hvd_core/_core") and name.endswith(".so")]) == 1
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_wheel_holds_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hvd_core", "horovod"}
    surplus = [name for name in names if name.endswith((".cc", ".pyc", ".a", ".o", ".txt"))]
    # The templates and simulators are sources, for `hvd plugin new` to copy; the pages have one example in C++.
    sources = re.compile(
        r"\.dist-info/|^hvd_core/(template(_host)?|simulators)/|^hvd_core/docs/loopback\.cc$"
    )
    assert [name for name in surplus if not sources.search(name)] == []
    assert not [name for name in names if name.startswith("hvd_core/template/torch")]
    assert {name.rpartition("/")[2].partition(".")[0] for name in names if name.endswith(".so")} == {
        "_core",
        "libhvd_backend_shm",
        "libhvd_backend_tcp",
        "libhvd_jax",
        "libhvd_tf",
    }


def test_wheel_needs_no_framework(wheel):
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = [
        line for line in archive.read(metadata).decode().splitlines() if line.startswith("Requires-Dist:")
    ]
    unconditional = {re.split(r"[>;]", line.split()[1])[0] for line in required if "extra ==" not in line}
    # tomli for Python 3.10, whose library has no reader of TOML.
    assert unconditional == {
        "cloudpickle",
        "numpy",
        "packaging",
        "psutil",
        "pyyaml",
        "rich",
        "stevedore",
        "tomli",
    }


def test_binaries_export_only_their_entry(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for library, entry in (
        ("_core.*.so", "PyInit__core"),
        ("lib/libhvd_backend_shm.so", "hvd_backend_entry_v1"),
        ("lib/libhvd_backend_tcp.so", "hvd_backend_entry_v1"),
    ):
        (path,) = (tmp_path / "hvd_core").glob(library)
        listing = run("nm", "-D", "--defined-only", str(path)).splitlines()
        # Weak and unique symbols are inline functions of the C++ library, which the linker may merge safely.
        exported = {fields[-1] for fields in map(str.split, listing) if fields[-2] in "TDBR"}
        assert exported == {entry}


def test_installed_wheel_works_without_the_checkout(wheel, tmp_path):
    run(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(tmp_path / "venv"))
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel))
    # A venv made from a venv does not see its packages: the dependencies come by PYTHONPATH, after the wheel.
    paths = [str(site), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    python = str(tmp_path / "venv" / "bin" / "python")
    where = run(python, INSTALLED_PROGRAMS, "sum_alone", cwd=tmp_path, env=environment).strip()
    assert where.startswith(str(site)), f"not the wheel's module was loaded but {where}"
