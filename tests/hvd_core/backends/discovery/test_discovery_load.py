"""Libraries that do not load, with messages that name their wheel, and the facts of libraries that do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import hvd_core
from hvd_core import _core
from hvd_core._config.hints import pip_install
from hvd_core.backends import BackendLoadError, BackendUnavailable, _discovery
from hvd_core.backends._discovery import diagnosis, lookup
from hvd_core.backends._discovery.diagnosis import load_diagnosis
from hvd_core.backends._discovery.installed_backend import ABI, load_backend
from hvd_core.backends._discovery.registry import embedded
from hvd_core.backends._slots import slots
from plugin_sites import announce

INCLUDE = Path(hvd_core.__file__).resolve().parent / "include"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def compile(folder, name, text, *words):
    """A shared object from C."""
    source, library = folder / f"{name}.c", folder / f"lib{name}.so"
    source.write_text(text)
    words = ["cc", "-shared", "-fPIC", f"-I{INCLUDE}", "-o", library, source, *words]
    subprocess.run([str(word) for word in words], check=True, timeout=60)
    return library


def plugin(site, name, library, more=""):
    """The installed backend of a wheel whose library this is; ``more`` is code of its descriptor."""
    text = f"{name!r}, (1, 0), ('cpu',), frozenset({{'comm'}}), Path({str(library)!r}), {more}"
    code = "from pathlib import Path\nfrom hvd_core.backends import BackendDescriptor, Unavailable\n"
    announce(site, name, code + f"def describe(): return BackendDescriptor({text})\n")
    _discovery.forget()
    return lookup(name, "HOROVOD_BACKEND")


def refusal(backend, kind=BackendLoadError):
    with pytest.raises(kind) as caught:
        load_backend(backend)
    return str(caught.value)


@pytest.fixture
def vendor(tmp_path):
    """A backend's library that needs a vendor's, which has then been taken away."""
    ghost = compile(tmp_path, "ghost", "int ghost(void) { return 1; }", "-Wl,-soname,libghost.so.3")
    needy = compile(
        tmp_path,
        "needy",
        "#include <unistd.h>\nint ghost(void); int hvd_backend_entry_v1(void) { return ghost() + getpid(); }",
        ghost,
        "-Wl,-rpath,$ORIGIN/vendor",
    )
    ghost.unlink()
    return needy


def test_a_missing_vendor_library(site, vendor, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/somewhere/lib")
    backend = plugin(site, "needy", vendor, "requires=('libghost.so >= 3.1',)")
    assert refusal(backend) == (
        "horovod: backend 'needy' (hvd-backend-needy 0.3.0) failed to load.\n"
        "  cause: libghost.so.3: cannot open shared object file: No such file or directory        "
        f"searched: {vendor.parent}/vendor, /opt/somewhere/lib, system folders (ld.so.cache)\n"
        "  needs: libghost.so >= 3.1        fix: install what it needs, or name its folder in LD_LIBRARY_PATH, "
        "HOROVOD_BACKEND_NEEDY_LIBRARY or plugins.toml [backend.needy].library        check: hvd plugin doctor needy"
    )


def test_the_probe_knows_a_better_fix(site, vendor):
    probe = "probe=lambda: Unavailable('no library', 'source /opt/ghost/env.sh')"
    backend = plugin(site, "needs", vendor, probe)
    assert "  fix: source /opt/ghost/env.sh        check: hvd plugin doctor needs" in refusal(backend)


@pytest.mark.skipif(shutil.which("ldd") is None, reason="needs ldd")
def test_the_doctor_says_which_library(vendor):
    lines = load_diagnosis(vendor)
    assert "needs libghost.so.3: not found" in lines
    assert any(re.fullmatch(r"needs libc.so.6: /.*/libc.so.6", line) for line in lines)
    assert lines[-1].startswith(f"searched: {vendor.parent}/vendor, ")


@pytest.mark.skipif(shutil.which("ldd") is None, reason="needs ldd")
def test_the_doctor_names_all_missing_functions(site, tmp_path):
    text = "int one(void); int two(void); int hvd_backend_entry_v1(void) { return one() + two(); }"
    library = compile(tmp_path, "holes", text)
    assert "undefined symbol: " in refusal(plugin(site, "holes", library))
    wanted = {f"undefined symbol that no library defines: {name}" for name in ("one", "two")}
    assert wanted <= set(load_diagnosis(library))


def test_without_the_tools_the_folders_of_the_environment_are_named(vendor, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/somewhere/lib")
    assert diagnosis.searched(vendor) == ("/opt/somewhere/lib", "system folders (ld.so.cache)")
    assert load_diagnosis(vendor)[0].startswith("ldd cannot examine it: ")


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_the_exports_of_a_library():
    shared = diagnosis.read(embedded()[0].path())
    assert shared.defined == ("hvd_backend_entry_v1",) and "libc.so.6" in shared.needed


def test_another_abi_by_its_symbol(site, tmp_path):
    library = compile(tmp_path, "newer", "int hvd_backend_entry_v2(void) { return 0; }")
    assert refusal(plugin(site, "newer", library)) == (
        f"horovod: backend 'newer' (hvd-backend-newer 0.3.0) needs backend ABI 2.x; this hvd-core {hvd_core.__version__} "
        f"offers {ABI[0]}.{ABI[1]}.  fix: {pip_install('hvd-core', '-U')}"
    )
    library = compile(tmp_path, "none", "int nothing;")
    text = refusal(plugin(site, "none", library))
    assert "cause: the library exports no hvd_backend_entry_v1, so it is no backend\n" in text
    assert "searched" not in text and "check: hvd plugin doctor none" in text


def test_a_library_that_says_it_cannot_work_here(site, tmp_path):
    text = """
    #include <hvd/backend_abi.h>
    #include <string.h>
    hvd_rc hvd_backend_entry_v1(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) {
      error->code = HVD_E_UNAVAILABLE;
      strcpy(error->text, "no device is visible");
      return HVD_E_UNAVAILABLE;
    }
    """
    backend = plugin(site, "absent", compile(tmp_path, "absent", text))
    assert refusal(backend, BackendUnavailable) == (
        "horovod: backend 'absent' is installed but unavailable here: no device is visible."
    )
    text = text.replace("no device is visible", "libthing.so has no function thingAdd; is it Thing?")
    backend = plugin(site, "older", compile(tmp_path, "older", text), "requires=('libthing.so >= 3.1',)")
    assert refusal(backend, BackendUnavailable) == (
        "horovod: backend 'older' is installed but unavailable here: libthing.so has no function thingAdd; is it Thing?\n"
        "  fix: have what it needs: libthing.so >= 3.1"
    )


SMALL = """
#include <hvd/backend_abi.h>
#define HDR(T) {sizeof(T), HVD_ABI_MAJOR, HVD_ABI_MINOR, 0}
static hvd_rc create(const hvd_comm_args* a, hvd_comm* c, hvd_error* e) { return HVD_E_INTERNAL; }
static hvd_rc destroy(hvd_comm c, hvd_error* e) { return HVD_OK; }
static hvd_rc query(hvd_comm c, const hvd_coll_args* a, hvd_coll_caps* caps, hvd_error* e) {
  if (a->coll == HVD_BROADCAST) return HVD_E_INVALID;
  if (a->coll != HVD_ALLREDUCE || c) return HVD_E_UNSUPPORTED;
  caps->support = HVD_NATIVE; caps->score = 7; caps->alignment = 64; caps->max_count = 1000;
  return HVD_OK;
}
static hvd_rc collective(hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) { return HVD_E_INTERNAL; }
static const hvd_comm_api comm = {.hdr = HDR(hvd_comm_api), .device_types = "box,crate",
  .caps = HVD_CAP_STREAM | HVD_CAP_ONE_HOST | HVD_CAP_MEM_HOST | HVD_CAP_MEM_DEVICE | 1ull << 40,
  .create = create, .destroy = destroy, .query = query, .collective = collective};
static const hvd_option options[] = {{HDR(hvd_option), "depth", "int", "4", "1..9", "How deep."}};
static const hvd_backend_api api = {.hdr = HDR(hvd_backend_api), .name = "small", .tag = "SMALL", .version = "0.1",
  .vendor_lib = "libbox.so 3", .comm = &comm, .options = options, .option_count = 1};
hvd_rc hvd_backend_entry_v1(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) {
  *out = &api;
  return HVD_OK;
}
"""


def test_a_library_that_only_a_variable_names(tmp_path, monkeypatch):
    library = compile(tmp_path, "small", SMALL)
    monkeypatch.setenv("HOROVOD_BACKEND_PATH_SMALL", str(library))
    backend = lookup("small", "HOROVOD_BACKEND")
    assert (backend.origin, backend.automatic) == ("HOROVOD_BACKEND_PATH_SMALL", False)
    # It has no descriptor; its tables have the facts.
    assert backend.devices == ("box", "crate", "cpu") and backend.provides == {"comm"}
    assert (backend.version, backend.spans_hosts) == ("0.1", False)
    facts = _core.inspect_backend("small", str(library))
    assert facts["caps"] == ["STREAM", "ONE_HOST", "MEM_HOST", "MEM_DEVICE", "bit 40"]
    assert (facts["tag"], facts["vendor_lib"], facts["device_type"]) == ("SMALL", "libbox.so 3", "")
    assert facts["options"] == [
        {"name": "depth", "type": "int", "fallback": "4", "range": "1..9", "doc": "How deep."}
    ]
    assert [name for name, there in facts["slots"]["comm"].items() if there] == [
        *("create", "destroy", "query", "collective")
    ]
    allreduce, broadcast, barrier = 0, 2, 8
    known = {"support": 1, "score": 7, "alignment": 64, "max_count": 1000}
    assert _core.query_backend("small", str(library), allreduce, 0, 0) == known
    for other in (broadcast, barrier):  # invalid and unsupported questions are not served
        assert _core.query_backend("small", str(library), other, 0, 0)["support"] == 0
    monkeypatch.setenv("HOROVOD_BACKEND_PATH_SMALL", "libsmall.so")
    with pytest.raises(
        BackendLoadError, match="is not an absolute path; libraries are not taken from the current"
    ):
        lookup("small", "x")


def test_the_offered_abi_is_the_headers():
    header = (INCLUDE / "hvd" / "backend_abi.h").read_text()
    assert (
        tuple(int(re.search(rf"#define HVD_ABI_{part} (\d+)", header)[1]) for part in ("MAJOR", "MINOR"))
        == ABI
    )


@pytest.mark.parametrize("backend", embedded(), ids=lambda b: b.name)
def test_the_static_table_says_what_the_tables_say(backend):
    facts = load_backend(backend)
    assert facts["name"] == backend.name and facts["version"] and facts["abi"] == ABI
    assert set(facts["slots"]) == backend.provides
    assert tuple(facts["device_types"]) == backend.devices == ("cpu",)
    assert ("ONE_HOST" not in facts["caps"]) == backend.spans_hosts
    for table, has in facts["slots"].items():
        assert list(has) == [s.name for s in slots() if s.table == table]
        assert all(has[s.name] for s in slots() if s.table == table and s.need == "REQUIRED")


def test_query_by_numbers():
    shm = embedded()[0]
    ask = [shm.name, str(shm.path())]
    allreduce, barrier, float32, boolean, total, mean = 0, 8, 7, 9, 0, 4
    assert _core.query_backend(*ask, allreduce, float32, total)["support"] == 1
    assert _core.query_backend(*ask, barrier, 0, total)["support"] == 1
    assert _core.query_backend(*ask, allreduce, boolean, mean)["support"] == 0
    with pytest.raises(ValueError, match="no such collective"):
        _core.query_backend(*ask, 99, float32, total)
    with pytest.raises(BackendLoadError):
        _core.inspect_backend("tcp", str(shm.path()))
