"""Programs that use eccl_stub through its table, each in a process of its own. stub_backend.run() starts them:

    python eccl_programs.py FUNCTION ARGUMENT ...

A process of its own, because the simulator reads its settings when it is loaded, and a fork of a process that has
loaded it has no devices.
"""

import ctypes as C
import sys


def describe_and_probe(packages):
    """What the package says of itself; describing imports nothing heavy."""
    sys.path.insert(0, packages)
    import hvd_backend_eccl_stub as package

    described = package.describe()
    assert not {"numpy", "torch", "hvd_core._core"} & set(sys.modules), sorted(sys.modules)
    print(described.library.is_file(), described.probe().detail)


def probe(packages):
    """The answer of a probe that finds no library of the vendor."""
    sys.path.insert(0, packages)
    import hvd_backend_eccl_stub as package

    answer = package.probe()
    print(type(answer).__name__, answer.reason, "|", answer.fix)


class Empty:
    """The store of a job that needs none."""

    def delete(self, key):
        pass


def loaded(library):
    from hvd_core.conformance._backend import Backend

    return Backend("eccl_stub", library, Empty())


def refusal(call, *arguments):
    """The failure of a call that must fail."""
    from hvd_core.conformance._backend import BackendFailure

    try:
        call(*arguments)
    except BackendFailure as failure:
        return failure
    raise AssertionError("that was not refused")


def made(backend, slot, *arguments):
    """The handle that a slot of the device's table makes."""
    handle = C.c_void_p()
    backend.call("device", slot, *arguments, C.byref(handle))
    return handle


def refused_load(library):
    failure = refusal(loaded, library)
    print(failure.code, failure.text)


def tables(library):
    """The slots that the tables lack, and the facts about the backend."""
    backend = loaded(library)
    facts = ("hdr", "device_type", "device_types", "caps")

    def absent(table):
        names = [name for name, _ in getattr(backend, table)._fields_ if name not in facts]
        return [name for name in names if not backend.has(table, name)]

    types = backend.device.device_type, backend.comm.device_types
    print(absent("device"), absent("comm"), *types, bin(backend.caps))
    api = backend.api
    print(api.name, api.tag, api.version, api.vendor_lib, api.option_count)


def served(library, dtypes):
    """For each collective, without factors and with: the types that each reduction is served for."""
    from hvd_core.conformance._abi import CollArgs, CollCaps, new

    backend, names = loaded(library), dtypes.split()

    def answers(coll, dtype, op, factors):
        args, caps = new(CollArgs), new(CollCaps)
        args.coll, args.dtype, args.op = coll, dtype, op
        args.prescale, args.postscale = factors
        backend.call("comm", "query", None, C.byref(args), C.byref(caps))
        return caps.support == 1

    for coll in range(9):
        for factors in ((0, 0), (0.5, 3.0)):
            found = [
                f"{op}:{','.join(name for d, name in enumerate(names) if answers(coll, d, op, factors))}"
                for op in range(5)
            ]
            print(coll, factors == (0, 0), *found)


def current_device(library, simulator):
    """The caller's current device after calls of every kind, and after one that fails."""
    from hvd_core.conformance._abi import Buf

    backend, vendor = loaded(library), C.CDLL(simulator)

    def current():
        now = C.c_int(-1)
        assert vendor.topsGetDevice(C.byref(now)) == 0
        return now.value

    assert vendor.topsSetDevice(3) == 0
    device = made(backend, "open", 1, None)
    stream, event = (
        made(backend, "stream_create", device, 0),
        made(backend, "event_create", device, 0),
    )
    memory, buf = C.c_void_p(), Buf()
    backend.call("device", "mem_alloc", device, 1, 4096, C.byref(memory), C.byref(buf))
    kind, ordinal = C.c_int32(), C.c_int32()
    backend.call("device", "mem_query", buf.base, C.byref(kind), C.byref(ordinal))
    backend.call("device", "event_record", event, stream)
    print(kind.value, ordinal.value, current())
    too_much = ("device", "mem_alloc", device, 1, 1 << 60, C.byref(memory), C.byref(buf))
    failure = refusal(backend.call, *too_much)
    print(failure.code, failure.text, current())


def vendor_results(library):
    """A rank makes a call that the simulator forbids, calls that the backend refuses, and one after an abort."""
    from hvd_core.conformance import _abi
    from hvd_core.conformance._abi import Buf, CollArgs, CommArgs, new
    from hvd_core.conformance._backend import deadline

    backend = loaded(library)
    device = made(backend, "open", 0, None)
    stream = made(backend, "stream_create", device, 0)
    memory, buf = C.c_void_p(), Buf()
    backend.call("device", "mem_alloc", device, 1, 4096, C.byref(memory), C.byref(buf))
    unique = (C.c_char * backend.comm.id_bytes())()
    backend.call("comm", "id_create", unique)
    args, comm = new(CommArgs), C.c_void_p()
    args.key, args.store = b"k", backend.host.scope("k")
    args.id, args.id_bytes = C.addressof(unique), len(unique)
    args.ranks = args.hosts = (C.c_int32 * 1)(0)
    args.rank, args.size, args.device, args.deadline_ns = 0, 1, device, deadline(20)
    code = backend.call("comm", "create", C.byref(args), C.byref(comm), allowed=(0, 1))
    while code == 1:
        code = backend.call("comm", "create_test", comm, allowed=(0, 1))

    def arguments(kind, dtype, out, count, root=0):
        call = new(CollArgs)
        call.coll, call.dtype, call.n_bufs, call.root, call.stream = kind, dtype, 1, root, stream
        call.in_, call.out, call.counts = (Buf * 1)(buf), (Buf * 1)(out), (C.c_uint64 * 1)(count)
        return call

    def collective(*words):
        return backend.call("comm", "collective", comm, C.byref(arguments(*words)), None)

    error = new(_abi.Error)
    from_rank_5 = arguments(_abi.BROADCAST, 7, buf, 100, 5)
    status = backend.comm.collective(comm, C.byref(from_rank_5), None, C.byref(error))
    print(status, error.vendor_code, error.text.decode())
    print(refusal(collective, _abi.ALLTOALL, 7, buf, 100).text)
    print(refusal(collective, _abi.ALLREDUCE, 5, buf, 100).text)
    backend.call("comm", "abort", comm)
    print(refusal(collective, _abi.ALLREDUCE, 7, buf, 100).code)
    backend.call("comm", "destroy", comm)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
