"""The template backend eccl_stub through its table: what it claims, what it refuses, and in which words."""

import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import eccl_programs
import stub_backend

NAMES = (
    "uint8 int8 uint16 int16 int32 int64 float16 float32 float64 bool bfloat16 float8 float8b uint32 uint64"
)


def version():
    return re.search(
        r'^version = "(.*)"$', (stub_backend.FOLDER / "pyproject.toml").read_text(), re.MULTILINE
    )[1]


def test_the_wheel_is_installed_and_discovered():
    (found,) = entry_points(group="hvd_core.backends", name="eccl_stub")
    assert found.value == "hvd_backend_eccl_stub:describe"
    assert (found.dist.name, found.dist.version) == ("hvd-backend-eccl-stub", version())


def test_the_version_is_said_once_in_each_language():
    assert f'version = "{version()}"' in (stub_backend.FOLDER / "csrc" / "eccl_comm.h").read_text()


def test_describing_imports_nothing_heavy_and_probing_opens_no_device():
    said = stub_backend.run(
        eccl_programs.describe_and_probe, stub_backend.PACKAGE.parent, python=sys.executable
    )
    assert said == "True libeccl_sim.so 3.1.0, 8 devices\n"


def probe(library):
    packages = stub_backend.PACKAGE.parent
    return stub_backend.run(eccl_programs.probe, packages, HOROVOD_BACKEND_ECCL_STUB_LIBRARY=library)


def test_probe_says_what_is_missing(tmp_path):
    said = probe(str(tmp_path / "libeccl.so.3"))
    assert said.startswith("Unavailable ") and "libeccl.so.3: cannot open shared object file" in said
    assert "HOROVOD_BACKEND_ECCL_STUB_LIBRARY" in said.split("|")[1]
    # A library that is something else entirely.
    said = probe("libm.so.6")
    assert said.startswith("Unavailable ") and "ecclGetVersion" in said


def refused_load(**environment):
    return stub_backend.run(eccl_programs.refused_load, stub_backend.library(), **environment)


def test_a_library_that_is_not_there_is_unavailable(tmp_path):
    missing = str(tmp_path / "libeccl.so.3")
    said = refused_load(HOROVOD_BACKEND_ECCL_STUB_LIBRARY=missing)
    assert said == (
        f"4 {missing}: cannot open shared object file: No such file or directory (option library = '{missing}')\n"
    )


def test_a_missing_function_is_named(tmp_path):
    """A library that is complete up to the last of the functions that the backend uses."""
    listed = (stub_backend.FOLDER / "csrc" / "eccl_functions.inc").read_text()
    names = re.findall(r"^ECCL_FUNCTION\((\w+)\)$", listed, re.MULTILINE)
    assert len(names) > 30
    source = tmp_path / "incomplete.c"
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names if name != "ecclRecv"))
    library = tmp_path / "libincomplete.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    said = refused_load(HOROVOD_BACKEND_ECCL_STUB_LIBRARY=str(library))
    assert said == f"4 '{library}' has no function ecclRecv; is it ECCL (option library)?\n"


def test_the_tables_have_what_the_classes_have():
    said = stub_backend.run(eccl_programs.tables, stub_backend.library())
    caps = "STREAM 0, GROUP_SAME 3, ABORT 5, MEM_DEVICE 8"
    bits = bin(sum(1 << int(bit) for bit in re.findall(r"\d", caps)))
    lines = said.splitlines()
    assert lines[0] == (
        "['batched_copy_scale', 'reduce_local'] ['split', 'finalize', 'req_test', 'req_wait', 'req_free', "
        f"'mem_register', 'mem_deregister', 'window_create', 'window_destroy', 'window_free'] b'gcu' b'gcu' {bits}"
    )
    assert lines[1] == "b'eccl_stub' b'ECCL' b'0.1.0' b'libeccl_sim.so 3.1.0' 1"


def test_query_is_honest_about_types_reductions_and_factors():
    """ECCL reduces neither 64-bit types, 16-bit integers, bool nor 8-bit floats; everything can be moved."""
    said = stub_backend.run(eccl_programs.served, stub_backend.library(), NAMES)
    plain = "uint8,int8,int32,float16,float32,bfloat16,uint32"
    floats = "float16,float32,bfloat16"
    scaled = "float32,bfloat16"  # a factor of float16's own type would soon be out of its range
    lines = said.splitlines()
    everything = NAMES.replace(" ", ",")
    for coll in (0, 1, 4):  # allreduce, reduce, reducescatter: sum, prod, min, max, then the average
        assert lines[2 * coll] == f"{coll} True " + " ".join(
            f"{op}:{plain if op < 4 else floats}" for op in range(5)
        )
        assert lines[2 * coll + 1] == f"{coll} False 0:{scaled} 1: 2: 3: 4:{scaled}"
    for coll in (2, 3, 5, 6, 7):
        assert lines[2 * coll] == f"{coll} True " + " ".join(f"{op}:{everything}" for op in range(5))
    assert "uint8" not in lines[16], "there is no barrier"


def test_the_callers_current_device_is_left_as_it_was():
    """TOPS has one current device per thread, which is the user's: PyTorch, say, keeps its own there."""
    said = stub_backend.run(
        eccl_programs.current_device, stub_backend.library(), stub_backend.library("eccl_sim")
    )
    first, second = said.splitlines()
    assert first == "1 1 3"
    assert re.fullmatch(r"5 topsMalloc: .*memory.* 3", second), second


def test_a_vendors_result_keeps_its_number_and_name():
    """A rank makes a call that the simulator forbids."""
    said = stub_backend.run(eccl_programs.vendor_results, stub_backend.library())
    lines = said.splitlines()
    assert lines[0].startswith("2 4 ecclBroadcast: ECCL returned ecclInvalidArgument (4): "), lines[0]
    assert lines[1:] == [
        "ECCL cannot do an alltoall in place",
        "collective 0 with dtype 5 and reduction 0 is not served; query says so too",
        "7",
    ]


@pytest.mark.parametrize("mode", ["address", "handle"])
def test_collectives_in_both_kinds_of_memory(mode):
    """In handle mode a device pointer is the name of an object, to which nothing can be added."""
    names = ["allreduce", "allgatherv", "reducescatterv", "alltoallv", "send_recv", "groups", "in_place"]
    cases = [word for name in names for word in ("--case", f"L2.{name}")]
    status, said = stub_backend.conformance("--case", "L1.copy", *cases, TOPS_SIM_MEMORY=mode)
    assert status == 0, said
    assert said.count("PASS     ") == len(names) + 1, said


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["address", "handle"])
def test_the_whole_kit(mode):
    status, said = stub_backend.conformance(ranks=4, TOPS_SIM_MEMORY=mode, TOPS_SIM_DELAY_US="50")
    assert status == 0, said
