"""Which NCCL library is used: the loaded one, the option's, HOROVOD_NCCL_HOME's, the wheel's, the system's. The probe,
which opens none, and the backend, which does, find the same."""

import json
import shutil
from pathlib import Path

import pytest

import nccl_stand_in

FOUND = Path(__file__).with_name("nccl_found.py")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Folders with an NCCL each; a folder's name is its version."""
    root = tmp_path_factory.mktemp("nccl")
    codes = {"2.27.3": 22703, "2.30.4": 23004, "2.19.1": 21901, "2.18.5": 21805, "2.8.4": 2804}
    for version, code in codes.items():
        nccl_stand_in.nccl(root / version / "lib" / "libnccl.so.2", code)
    # Its file and its name are others, as where a framework brings its own.
    nccl_stand_in.nccl(root / "own" / "libnccl.so.2.26.2", 22602, soname="libnccl-own.so")
    nccl_stand_in.nccl(root / "poor" / "libnccl.so.2", 22703, without=("ncclSend",))
    nccl_stand_in.nccl(
        root / "plain" / "libnccl.so.2",
        22005,
        without=(
            "ncclGetLastError",
            "ncclCommInitRankConfig",
            "ncclCommFinalize",
            "ncclCommSplit",
            "ncclCommRegister",
        ),
    )
    return root


@pytest.fixture
def found(run_python, nccl_library):
    def found(*first, library=nccl_library, **variables):
        done = run_python([FOUND, library, *first], **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    return found


def path_in(folder, version):
    return str(folder / version / "lib" / "libnccl.so.2")


def uses(said, path, version, code):
    """One copy is loaded, this one, and both say so."""
    assert "error" not in said, said["error"]
    assert said["probe"] == path and said["copies"] == [path]
    assert said["vendor_lib"] == f"libnccl.so.2 {version}"
    assert said["facts"] == [f"libnccl.so.2 {version} ({path})", version, str(code)]


def test_without_a_library_the_backend_loads_and_knows_no_facts(found):
    said = found(LD_LIBRARY_PATH="/nowhere")
    if said["copies"]:
        pytest.skip(f"the system has one: {said['copies']}")
    assert said == {"probe": "no NCCL library was found", "vendor_lib": "", "facts": [None] * 3, "copies": []}


def test_named_places_in_their_order(found, libraries):
    system = {"LD_LIBRARY_PATH": str(libraries / "2.19.1" / "lib")}
    uses(found(**system), path_in(libraries, "2.19.1"), "2.19.1", 21901)
    home = {**system, "HOROVOD_NCCL_HOME": str(libraries / "2.27.3")}
    uses(found(**home), path_in(libraries, "2.27.3"), "2.27.3", 22703)
    option = {**home, "HOROVOD_BACKEND_NCCL_LIBRARY": path_in(libraries, "2.30.4")}
    uses(found(**option), path_in(libraries, "2.30.4"), "2.30.4", 23004)


def test_the_wheel_of_the_environment_that_the_backend_is_installed_in(
    found, libraries, nccl_library, tmp_path
):
    site = tmp_path / "lib" / "python3" / "site-packages"
    wheel = nccl_stand_in.wheel(site, "2.27.3", 22703, 13)
    (site / "hvd_backend_nccl" / "lib").mkdir(parents=True)
    library = shutil.copy(nccl_library, site / "hvd_backend_nccl" / "lib")
    # The probe goes by Python's path, the library by where it lies.
    system = {"LD_LIBRARY_PATH": str(libraries / "2.19.1" / "lib")}
    said = found(library=library, **system)
    assert said["vendor_lib"] == "libnccl.so.2 2.27.3" and said["copies"] == [str(wheel)]


def test_a_loaded_library_is_used_under_whatever_path(found, libraries):
    loaded, option = str(libraries / "own" / "libnccl.so.2.26.2"), path_in(libraries, "2.30.4")
    uses(found(loaded, HOROVOD_NCCL_HOME=str(libraries / "2.27.3")), loaded, "2.26.2", 22602)
    uses(found(loaded, HOROVOD_BACKEND_NCCL_LIBRARY=loaded), loaded, "2.26.2", 22602)
    said = found(loaded, HOROVOD_BACKEND_NCCL_LIBRARY=option)
    for text in (said["error"], said["probe"]):
        assert f"option library names '{option}', but the process has loaded '{loaded}' (PyTorch's?)" in text
    assert said["copies"] == [loaded]


def test_what_cannot_be_used_says_why(found, libraries, tmp_path):
    def refused(library, **variables):
        said = found(HOROVOD_BACKEND_NCCL_LIBRARY=str(library), **variables)
        assert said["error"].startswith("nccl: load: ") and said["error"].endswith("(UNAVAILABLE)")
        return said["error"]

    old = libraries / "2.18.5" / "lib" / "libnccl.so.2"
    assert f"'{old}' is NCCL 2.18.5, and 2.19 or newer is needed: pip install nvidia-nccl-cu13" in refused(
        old
    )
    assert "is NCCL 2.8.4, and 2.19 or newer is needed" in refused(
        libraries / "2.8.4" / "lib" / "libnccl.so.2"
    )
    assert "(NCCL 2.27.3) has no function ncclSend" in refused(libraries / "poor" / "libnccl.so.2")
    assert "tells no version" not in refused("libm.so.6") and "it is no NCCL library" in refused("libm.so.6")
    said = found(HOROVOD_BACKEND_NCCL_LIBRARY=str(tmp_path / "libnccl.so.2"))
    assert f"there is no file '{tmp_path / 'libnccl.so.2'}'" in said["probe"]
    assert "cannot open shared object file" in said["error"]


def test_functions_of_later_versions_may_be_missing(found, libraries):
    assert (
        found(HOROVOD_BACKEND_NCCL_LIBRARY=str(libraries / "plain" / "libnccl.so.2"))["facts"][1] == "2.20.5"
    )
