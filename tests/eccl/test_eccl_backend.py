"""The template backend eccl_stub through its table: what it claims, what it refuses, and in which words."""

import re
import subprocess
from importlib.metadata import entry_points

import pytest

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
    said = stub_backend.python(
        f"import sys; sys.path.insert(0, {str(stub_backend.PACKAGE.parent)!r})\n"
        "import hvd_backend_eccl_stub as package\n"
        "described = package.describe()\n"
        "assert not {'numpy', 'torch', 'hvd_core._core'} & set(sys.modules), sorted(sys.modules)\n"
        "print(described.library.is_file(), described.probe().detail)\n"
    )
    assert said == "True libeccl_sim.so 3.1.0, 8 devices\n"


def test_probe_says_what_is_missing(tmp_path):
    program = (
        f"import sys; sys.path.insert(0, {str(stub_backend.PACKAGE.parent)!r})\n"
        "import hvd_backend_eccl_stub as package\n"
        "answer = package.probe(); print(type(answer).__name__, answer.reason, '|', answer.fix)\n"
    )
    said = stub_backend.python(program, HOROVOD_BACKEND_ECCL_STUB_LIBRARY=str(tmp_path / "libeccl.so.3"))
    assert said.startswith("Unavailable ") and "libeccl.so.3: cannot open shared object file" in said
    assert "HOROVOD_BACKEND_ECCL_STUB_LIBRARY" in said.split("|")[1]
    # A library that is something else entirely.
    said = stub_backend.python(program, HOROVOD_BACKEND_ECCL_STUB_LIBRARY="libm.so.6")
    assert said.startswith("Unavailable ") and "ecclGetVersion" in said


def refused_load(**environment):
    text = f"""
from hvd_core.conformance.backend import Backend, BackendFailure
try:
    Backend("eccl_stub", {str(stub_backend.library())!r})
except BackendFailure as failure:
    print(failure.code, failure.text)
"""
    return stub_backend.python(text, **environment)


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
    said = stub_backend.run("""
absent = lambda table: [n for n, _ in getattr(backend, table)._fields_
                        if n not in ("hdr", "device_type", "device_types", "caps") and not backend.has(table, n)]
print(absent("device"), absent("comm"), backend.device.device_type, backend.comm.device_types, bin(backend.caps))
print(backend.api.name, backend.api.tag, backend.api.version, backend.api.vendor_lib, backend.api.option_count)
""")
    caps = "STREAM 0, GROUP_SAME 3, ABORT 5, MEM_DEVICE 8"
    bits = bin(sum(1 << int(bit) for bit in re.findall(r"\d", caps)))
    lines = said.splitlines()
    assert lines[0] == (
        "['batched_copy_scale', 'reduce_local'] ['split', 'finalize', 'req_test', 'req_wait', 'req_free', "
        f"'mem_register', 'mem_deregister'] b'gcu' b'gcu' {bits}"
    )
    assert lines[1] == "b'eccl_stub' b'ECCL' b'0.1.0' b'libeccl_sim.so 3.1.0' 1"


def test_query_is_honest_about_types_reductions_and_factors():
    """ECCL reduces neither 64-bit types, 16-bit integers, bool nor 8-bit floats; everything can be moved."""
    said = stub_backend.run("""
def answers(coll, dtype, op, pre=0.0, post=0.0):
    args, caps = new(CollArgs), new(CollCaps)
    args.coll, args.dtype, args.op, args.prescale, args.postscale = coll, dtype, op, pre, post
    backend.call("comm", "query", None, C.byref(args), C.byref(caps))
    return caps.support == 1
names = sys.argv[1].split()
for coll in range(9):
    for factors in ((0, 0), (0.5, 3.0)):
        served = [f"{op}:{','.join(n for d, n in enumerate(names) if answers(coll, d, op, *factors))}" for op in range(5)]
        print(coll, factors == (0, 0), *served)
""", NAMES)  # fmt: skip
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
    said = stub_backend.run("""
def current():
    now = C.c_int(-1)
    assert vendor.topsGetDevice(C.byref(now)) == 0
    return now.value
assert vendor.topsSetDevice(3) == 0
device = made("open", 1, None)
stream, event = made("stream_create", device, 0), made("event_create", device, 0)
memory, buf = C.c_void_p(), Buf()
backend.call("device", "mem_alloc", device, 1, 4096, C.byref(memory), C.byref(buf))
kind, ordinal = C.c_int32(), C.c_int32()
backend.call("device", "mem_query", buf.base, C.byref(kind), C.byref(ordinal))
backend.call("device", "event_record", event, stream)
print(kind.value, ordinal.value, current())
failure = refusal(backend.call, "device", "mem_alloc", device, 1, 1 << 60, C.byref(memory), C.byref(buf))
print(failure.code, failure.text, current())
""")
    first, second = said.splitlines()
    assert first == "1 1 3"
    assert re.fullmatch(r"5 topsMalloc: .*memory.* 3", second), second


def test_a_vendors_result_keeps_its_number_and_name():
    """A rank makes a call that the simulator forbids."""
    said = stub_backend.run("""
device = made("open", 0, None)
stream = made("stream_create", device, 0)
memory, buf = C.c_void_p(), Buf()
backend.call("device", "mem_alloc", device, 1, 4096, C.byref(memory), C.byref(buf))
unique = (C.c_char * backend.comm.id_bytes())()
backend.call("comm", "id_create", unique)
args, comm = new(CommArgs), C.c_void_p()
args.key, args.store, args.id, args.id_bytes = b"k", backend.host.scope("k"), C.addressof(unique), len(unique)
args.ranks = args.hosts = (C.c_int32 * 1)(0)
args.rank, args.size, args.device, args.deadline_ns = 0, 1, device, deadline(20)
code = backend.call("comm", "create", C.byref(args), C.byref(comm), allowed=(0, 1))
while code == 1:
    code = backend.call("comm", "create_test", comm, allowed=(0, 1))

def coll(kind, dtype, out, count, root=0):
    call = new(CollArgs)
    call.coll, call.dtype, call.n_bufs, call.root, call.stream = kind, dtype, 1, root, stream
    call.in_, call.out, call.counts = (Buf * 1)(buf), (Buf * 1)(out), (C.c_uint64 * 1)(count)
    return backend.call("comm", "collective", comm, C.byref(call), None)

error = new(abi.Error)
call = new(CollArgs)
call.coll, call.dtype, call.n_bufs, call.root, call.stream = abi.BROADCAST, 7, 1, 5, stream
call.in_ = call.out = (Buf * 1)(buf)
call.counts = (C.c_uint64 * 1)(100)
print(backend.comm.collective(comm, C.byref(call), None, C.byref(error)), error.vendor_code, error.text.decode())
print(refusal(coll, abi.ALLTOALL, 7, buf, 100).text)
print(refusal(coll, abi.ALLREDUCE, 5, buf, 100).text)
backend.call("comm", "abort", comm)
print(refusal(coll, abi.ALLREDUCE, 7, buf, 100).code)
backend.call("comm", "destroy", comm)
""")
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
