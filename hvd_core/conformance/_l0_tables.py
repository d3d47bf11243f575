"""L0: a backend's tables, its description and its package. These cases open no device and no communicator; they run in a
process without ranks."""

from __future__ import annotations

import ctypes as C
import importlib.util
import json
import os
import re
import resource
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_core._base import sandbox
from hvd_core.backends import _options
from hvd_core.backends._discovery.installed_backend import ABI
from hvd_core.backends._slots import slots
from hvd_core.conformance import _abi
from hvd_core.conformance._abi import CAPS, OK, CollArgs, CollCaps, Error, new
from hvd_core.conformance._backend import Backend, code_name, has_slot
from hvd_core.conformance._cases import case

if TYPE_CHECKING:
    from hvd_core.backends.descriptor import BackendDescriptor
    from hvd_core.conformance._worker import Bare

ENTRY = "hvd_backend_entry_v1"
_WORD = "[a-z][a-z0-9_]*"
MOST_ALIGNMENT, MOST_SCORE = 1 << 20, 1000


@case("L0.symbol", "the library opens with RTLD_NOW, alone, and exports its entry function", ranks=0)
def symbol(bare: Bare) -> None:
    from hvd_core.backends._discovery.diagnosis import read

    if not bare.target.path:
        bare.skip("a backend written in Python has no library")
    try:
        library = C.CDLL(bare.target.path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as problem:
        bare.expect(False, f"does not open: {problem}")
    bare.expect(hasattr(library, ENTRY), f"exports no {ENTRY}")
    try:
        shared = read(Path(bare.target.path))
    except FileNotFoundError:
        bare.skip("its other exports cannot be read without readelf, of binutils")
    python = [n for n in shared.needed if n.startswith("libpython")]
    bare.expect(
        not python,
        f"is linked with {', '.join(python)}; a backend must work with any Python, and without Python",
    )
    others = [s for s in shared.defined if s.startswith("hvd_") and not s.startswith("hvd_backend_entry_v")]
    others += [s for s in shared.defined if re.match(r"_ZN?[A-Z]*\d*3hvd", s)]
    bare.expect(not others, f"exports {', '.join(others[:3])}; of this interface only {ENTRY} may be visible")
    if len(shared.defined) > 1:
        bare.note(
            "other exports", f"{len(shared.defined) - 1}, such as {sorted(set(shared.defined) - {ENTRY})[0]}"
        )


def _check_header(bare: Bare, table: Any, what: str, least: int) -> None:
    hdr = table.hdr
    bare.expect(
        least <= hdr.struct_size < 65536, f"the {what} has struct_size {hdr.struct_size}; ABI 1.0 has {least}"
    )
    bare.expect(hdr.major == 1, f"the {what} has major version {hdr.major}, its entry symbol has 1")
    bare.expect(hdr.ext is None, f"the {what} has a non-NULL hdr.ext, which is reserved")


@case("L0.tables", "headers, required slots, groups of slots", ranks=0)
def tables(bare: Bare) -> None:
    backend = bare.backend
    _check_header(bare, backend.api, "backend table", _abi.BackendApi.info.offset + 8)
    bare.expect(
        backend.comm or backend.device, "the backend has neither a device table nor a communicator table"
    )
    # As ABI 1.0 has them.
    ends = {"device": _abi.DeviceApi.reduce_local, "comm": _abi.CommApi.mem_deregister}
    for which, end in ends.items():
        table = getattr(backend, which)
        if table is None:
            continue
        _check_header(bare, table, f"{which} table", end.offset + end.size)
        groups: dict[str, dict[str, bool]] = {}
        for slot in (s for s in slots() if s.table == which):
            there = has_slot(table, slot.name)
            if slot.group:
                groups.setdefault(slot.group, {})[slot.name] = there
            bare.expect(
                there or slot.need != "REQUIRED" or slot.since_minor,
                f"the {which} table lacks the required {slot.name}",
            )
        for group, members in groups.items():
            lacking = [name for name, there in members.items() if not there]
            bare.expect(
                not lacking or len(lacking) == len(members),
                f"group '{group}' of the {which} table lacks {', '.join(lacking)}; fill all slots of a group or none",
            )
    again, error = C.POINTER(_abi.BackendApi)(), new(Error)
    code = backend.entry(C.byref(backend.host.table), C.byref(again), C.byref(error))
    bare.expect(code == OK and again, f"the entry function, called a second time, answers {code}")


def newer(bare: Bare) -> bool:
    """Whether the backend is built against a later minor version than this kit knows."""
    return bool(bare.backend.api.hdr.minor > ABI[1])


def _with_communicators(bare: Bare) -> Backend:
    """The backend. Skips the case if it has no communicator table."""
    if bare.backend.comm is None:
        bare.skip("the backend has no communicator table")
    return bare.backend


@case("L0.capabilities", "capabilities and slots agree", ranks=0)
def capabilities(bare: Bare) -> None:
    backend = _with_communicators(bare)
    caps = backend.caps
    has = {name: bool(caps & bit) for name, bit in CAPS.items()}
    unknown = caps & ~sum(CAPS.values())
    if unknown and newer(bare):
        bare.note("caps", f"has bits of its newer ABI, which this kit does not know: {unknown:#x}")
    else:
        bare.expect(not unknown, f"caps has bits that the header does not have: {unknown:#x}")
    bare.expect(
        has["STREAM"] != has["REQUEST"],
        "exactly one of STREAM and REQUEST is declared; a communicator completes in one way",
    )
    for names, slot in (
        (("REQUEST",), "req_wait"), (("REQUEST",), "req_test"), (("ABORT",), "abort"),
        (("GROUP_SAME", "GROUP_MIXED"), "group_begin"),
    ):  # fmt: skip
        declared, there = [name for name in names if has[name]], backend.has("comm", slot)
        bare.expect(there or not declared, f"{', '.join(declared)} is declared, but the slot {slot} is empty")
        bare.expect(
            declared or not there, f"the slot {slot} is filled, but {' or '.join(names)} is not declared"
        )
    bare.expect(has["MEM_HOST"] or has["MEM_DEVICE"], "neither MEM_HOST nor MEM_DEVICE is declared")
    bare.expect(
        not has["MEM_DEVICE"] or backend.comm_api.device_types,
        "MEM_DEVICE is declared, but device_types is empty",
    )
    bare.expect(
        has["STREAM"] <= has["MEM_DEVICE"],
        "STREAM is declared without MEM_DEVICE; streams belong to a device",
    )
    if not has["ABORT"]:
        bare.note("ABORT", "not declared: elastic jobs refuse this backend")


@case("L0.identity", "name, tag, version", ranks=0)
def identity(bare: Bare) -> None:
    api = bare.backend.api
    device = bare.backend.device
    for what, text, pattern, rule in (
        ("name", api.name, "[a-z0-9_-]{1,32}", "it must have 1 to 32 characters of a-z, 0-9, '_' and '-'"),
        ("tag", api.tag, "[A-Z0-9_]{1,16}", "timelines need 1 to 16 of A-Z, 0-9 and '_'"),
        ("version", api.version, r"\d+\.\d+.*", "ranks compare it, so it must be a version"),
        ("device_type", device.device_type if device else b"x", _WORD, "it must consist of a-z, 0-9 and '_'"),
    ):
        found = (text or b"").decode()
        bare.expect(re.fullmatch(pattern, found), f"the {what} is {found!r}; {rule}")
    bare.expect(
        api.name.decode() == bare.target.name,
        f"the library's name is '{api.name.decode()}', but the backend is installed as '{bare.target.name}'",
    )
    bare.expect(api.vendor_lib is not None, 'vendor_lib is NULL; it must be "" if there is no vendor library')


@case("L0.options", "every option has a name, a type, a default within its range, and a sentence", ranks=0)
def options(bare: Bare) -> None:
    api = bare.backend.api
    if not api.option_count:
        bare.note("options", "none")
        return
    bare.expect(
        api.options and api.option_count <= 4096, f"option_count is {api.option_count}, but options is NULL"
    )
    stride = api.options[0].hdr.struct_size
    bare.expect(stride >= C.sizeof(_abi.OptionRow), f"an option has a struct_size of {stride} bytes")
    seen = set()
    for i in range(api.option_count):
        row = _abi.OptionRow.from_address(C.addressof(api.options.contents) + i * stride)
        name = (row.name or b"").decode()
        bare.expect(row.hdr.struct_size == stride, f"option {i} has another struct_size than the first")
        bare.expect(
            re.fullmatch(_WORD, name),
            f"option {i} has the name {name!r}; it must consist of a-z, 0-9 and '_'",
        )
        bare.expect(name not in seen, f"option '{name}' occurs twice")
        seen.add(name)
        kind, doc = (row.type or b"").decode(), (row.doc or b"").decode()
        bare.expect(
            kind in _options.TYPES or newer(bare),
            f"option '{name}' has the type {kind!r}; known: {', '.join(_options.TYPES)}",
        )
        bare.expect(doc.strip(), f"option '{name}' has an empty doc; describe it in a sentence")
        bare.expect(row.fallback is not None, f"option '{name}' has no default; use \"\" for none")
        text = (row.fallback or b"").decode()
        wanted = _options.fault({"type": kind, "range": (row.range or b"").decode()}, text)
        bare.expect(wanted is None, f"the default of option '{name}' is {text!r}; it must be {wanted}")


@case("L0.facts", "info returns a fact as text with its size, or that the fact is unknown", ranks=0)
def facts(bare: Bare) -> None:
    api = bare.backend.api
    if not has_slot(api, "info"):
        bare.skip("the backend has no info slot")

    def ask(key: bytes, room: int) -> tuple[int, int, bytes]:
        text, n = C.create_string_buffer(b"\xee" * (room + 1), room + 1), C.c_uint64(room)
        code = api.info(key, text, C.byref(n), C.byref(new(Error)))
        bare.expect(
            text.raw[room] == 0xEE, f"info('{key.decode()}') writes beyond the {room} bytes of its buffer"
        )
        return code, n.value, text.raw

    known = []
    for key in (b"library", b"threads", b"device_memory", b"no-such-fact"):
        asked = f"info('{key.decode()}')"
        code, size, text = ask(key, 65536)
        if code in (_abi.UNAVAILABLE, _abi.UNSUPPORTED):
            continue
        bare.expect(code == OK, f"{asked} answered {code_name(code)}")
        bare.expect(
            0 < size <= 65536 and text.find(b"\0") == size - 1,
            f"{asked} returns a size of {size} bytes, which is not the length of its text",
        )
        known.append(key.decode())
        code, needed, _ = ask(key, 0)
        bare.expect(
            code == _abi.INVALID and needed == size,
            f"{asked} without room answered {code_name(code)} and {needed}; it needs {size}",
        )
    bare.expect("no-such-fact" not in known, "info returns a value for a fact that does not exist")
    bare.note("facts", ", ".join(known) or "none known before a communicator exists")


def _environment() -> list[bytes]:
    block = C.POINTER(C.c_char_p).in_dll(C.CDLL(None), "environ")
    found, i = [], 0
    while block[i]:
        found.append(block[i])
        i += 1
    return found


def process_state() -> dict[str, Any]:
    """The state of this process that a backend must not change."""
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
    )
    libc = C.CDLL(None)
    mask = os.umask(0o22)
    os.umask(mask)
    return {
        "environment variables": _environment(),
        "threads": len(os.listdir("/proc/self/task")),
        "handled signals": status["SigCgt"],
        "ignored signals": status["SigIgn"],
        "blocked signals": status["SigBlk"],
        "current directory": os.getcwd(),
        "umask": f"{mask:04o}",
        "rounding mode": libc.fegetround() if hasattr(libc, "fegetround") else 0,
        "arithmetic of denormal numbers": _denormals(),
        "processor cores": sorted(os.sched_getaffinity(0)),
        "resource limits": _resource_limits(),
    }


def _denormals() -> str:
    """Whether this thread's arithmetic keeps denormal numbers, as results and as operands. It does not after a library
    that is linked with -ffast-math was loaded."""
    normal, denormal, half, large = sys.float_info.min, 5e-324, 0.5, 2.0**1000
    faults = [
        *(["flushed to zero"] if struct.pack("d", normal * half) == bytes(8) else []),
        *(["taken as zero"] if struct.pack("d", denormal * large) == bytes(8) else []),
    ]
    return ", ".join(faults) or "kept"


def _resource_limits() -> list[str]:
    """``RLIMIT_NOFILE 1024 of 4096``, for each of them."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = ((name, resource.getrlimit(getattr(resource, name))) for name in names)
    return [f"{name} {soft} of {hard}" for name, (soft, hard) in limits]


@case(
    "L0.load",
    "loading changes nothing in the process and prints nothing: environment, threads, signals, cores, limits, arithmetic",
    ranks=0,
    fresh=True,
)
def load(bare: Bare) -> None:
    if bare.target.python:
        bare.skip("a backend written in Python runs in Python's own threads")
    before = process_state()
    with tempfile.TemporaryFile() as written:
        kept = os.dup(1)
        os.dup2(written.fileno(), 1)
        try:
            _ = bare.backend
            C.CDLL(None).fflush(None)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        written.seek(0)
        text = written.read(200).decode(errors="replace").strip()
    bare.expect(not text, f"loading writes to standard output: {text!r}")
    for what, now in process_state().items():
        bare.expect(
            now == before[what], f"loading changes the process's {what}: {_difference(before[what], now)}"
        )


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, list):
        lost, new = (
            [str(x) for x in one if x not in other][:3] for one, other in ((before, now), (now, before))
        )
        return f"{', '.join(lost) or 'nothing'} before, {', '.join(new) or 'nothing'} now"
    return f"{before} before, {now} now"


@case(
    "L0.query",
    "query is a pure function, needs no communicator, and checks struct sizes and invalid numbers",
    ranks=0,
)
def query(bare: Bare) -> None:
    backend = _with_communicators(bare)
    for coll in range(9):
        for dtype in range(15):
            for op in range(5):
                one, two = backend.query(coll, dtype, op), backend.query(coll, dtype, op)
                fault = "two equal questions got different answers" if bytes(one) != bytes(two) else ""
                fault = fault or _fault_of_answer(one, newer(bare))
                bare.expect(not fault, f"{fault}: {_asked(coll, dtype, op)}")
    for coll, dtype, op in ((99, 7, 0), (0, 99, 0), (0, 7, 99), (-1, -1, -1)):
        bare.expect(
            backend.query(coll, dtype, op).support == 0,
            f"a number that does not exist is served: {_asked(coll, dtype, op)}",
        )
    caps = new(CollCaps)
    short = CollCaps.max_count.offset
    caps.hdr.struct_size, caps.max_count = short, 0x5A5A5A5A
    args = new(CollArgs)
    args.coll, args.dtype = _abi.ALLREDUCE, 7
    backend.call(
        "comm", "query", None, C.byref(args), C.byref(caps), allowed=(OK, _abi.INVALID, _abi.UNSUPPORTED)
    )
    bare.expect(
        caps.max_count == 0x5A5A5A5A, f"query writes beyond the {short} bytes of an older host's struct"
    )
    _newer_arguments(bare)


def _fault_of_answer(caps: CollCaps, is_newer: bool) -> str:
    if caps.support not in (0, 1, 2):
        return f"support {caps.support} is not a valid answer"
    if caps.alignment & (caps.alignment - 1) or caps.alignment > MOST_ALIGNMENT:
        return f"alignment {caps.alignment} is not a power of two up to {MOST_ALIGNMENT}"
    if not 0 <= caps.score <= MOST_SCORE:
        return f"score {caps.score} is not in 0 to {MOST_SCORE}"
    if caps.flags and not is_newer:
        return f"flags {caps.flags:#x} of the answer are not in the header"
    return ""


def _asked(coll: int, dtype: int, op: int) -> str:
    return f"collective {coll}, type {dtype}, reduction {op}"


def _newer_arguments(bare: Bare) -> None:
    """A longer struct: zero beyond what is known is to be ignored, anything else refused."""
    # So much longer that a backend of a later minor version, too, does not know the last field.
    size = C.sizeof(CollArgs) + 4096
    room = (C.c_uint8 * size)()
    args = CollArgs.from_buffer(room)
    args.hdr.struct_size, args.hdr.major, args.coll, args.dtype = size, 1, _abi.ALLGATHER, 7
    pointer = C.cast(room, C.POINTER(CollArgs))
    for tail, wanted in ((0, (OK, _abi.INVALID)), (1, (_abi.UNSUPPORTED,))):
        room[size - 5] = tail
        error, caps = new(Error), new(CollCaps)
        code = bare.backend.comm_api.query(None, pointer, C.byref(caps), C.byref(error))
        refused = (
            code in wanted
            or (tail == 0 and code == _abi.UNSUPPORTED)
            or (tail and code == OK and caps.support == 0)
        )
        bare.expect(
            refused, "query got a field newer than the backend and did not answer UNSUPPORTED"
            if tail else f"query refuses a longer struct whose additional fields are 0: code {code}",
        )  # fmt: skip


@case(
    "L0.required",
    "the backend serves an allgather of some type, from which hvd-core can compose the rest",
    ranks=0,
)
def required(bare: Bare) -> None:
    backend = _with_communicators(bare)

    def served(coll: int, varying: bool = False) -> bool:
        return any(backend.query(coll, dtype, 0, varying=varying).support for dtype in range(15))

    some = served(_abi.ALLGATHER) or served(_abi.ALLGATHER, varying=True)
    bare.expect(some, "query serves no allgather of any type; hvd-core cannot compose operations without one")
    for name, coll in (("allreduce", _abi.ALLREDUCE), ("broadcast", _abi.BROADCAST)):
        if not served(coll):
            bare.note(
                name, "served for no type: hvd-core composes it from allgather, which moves many more bytes"
            )


# ---- the description: what it says, and what it costs -----------------------------------------------------------------

IMPORT_SECONDS = 0.1
_ANSWER_S = 60.0

_MEASURE = """
import sys, os, json, time, threading, importlib
import hvd_core.backends.descriptor
before, changed = set(sys.modules), []
sys.addaudithook(lambda event, args: changed.append(str(args[0])) if event in ("os.putenv", "os.unsetenv") else None)
started = time.process_time()
module, _, attribute = sys.argv[1].partition(":")
described = getattr(importlib.import_module(module), attribute)()
took = time.process_time() - started
def compiled(m):
    return (getattr(m, "__file__", None) or "").endswith(".so")
new = [n for n in sys.modules if n not in before and sys.modules[n] is not None]
outside = sorted({n.split(".")[0] for n in new if compiled(sys.modules[n])} - set(sys.stdlib_module_names))
print(json.dumps({"seconds": took, "compiled": outside, "threads": len(os.listdir("/proc/self/task")),
    "environment": changed}))
"""


def _answer_of(program: str, argument: str) -> dict[str, Any]:
    """What a program prints, as JSON in its last line; {"fault": the reason} if it does not."""
    done = sandbox.run([sys.executable, "-c", program, argument], timeout_s=_ANSWER_S)
    if done.returncode is None:
        return {"fault": f"it timed out after {_ANSWER_S:g} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    except (IndexError, ValueError):
        words = "".join(done.stderr.strip().splitlines()[-1:])
        return {"fault": f"it {sandbox.describe_exit(done.returncode)}: {words}"}


def described(bare: Bare) -> BackendDescriptor:
    """The descriptor. Skips the case if the backend is not in a wheel."""
    if bare.target.descriptor is None:
        bare.skip(f"the backend is not in a wheel ({bare.target.origin}): it has no descriptor")
    descriptor: BackendDescriptor = bare.target.descriptor
    return descriptor


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version without zeros at the end: (0, 3) of ``0.3.0+cuda12``."""
    match = re.match(r"[0-9.]+", version)
    numbers = [int(part) for part in match[0].split(".") if part] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@case("L0.descriptor", "the descriptor agrees with the library", ranks=0)
def descriptor(bare: Bare) -> None:
    found, backend = described(bare), bare.backend
    bare.expect(
        found.name == bare.target.name,
        f"the descriptor's name is '{found.name}', the entry point's '{bare.target.name}'",
    )
    hdr = backend.api.hdr
    bare.expect(
        tuple(found.abi) == (hdr.major, hdr.minor),
        f"the descriptor has ABI {found.abi[0]}.{found.abi[1]}, the library {hdr.major}.{hdr.minor}",
    )
    wheel, library = bare.target.version, (backend.api.version or b"").decode()
    bare.expect(
        not wheel or _release(wheel) == _release(library),
        f"the wheel has version {wheel}, the library in it {library}: one of them is left of another build",
    )
    has = {name for name in ("device", "comm") if getattr(backend, name) is not None}
    bare.expect(
        set(found.provides) == has,
        f"the descriptor provides {sorted(found.provides)}, the library has {sorted(has)}",
    )
    types = set(
        filter(None, ((backend.comm.device_types or b"") if backend.comm else b"").decode().split(","))
    )
    if backend.device:
        types.add(backend.device.device_type.decode())
    if backend.caps & 128:
        types.add("cpu")
    bare.expect(
        set(found.devices) <= types,
        f"the descriptor names devices {sorted(found.devices)}, the tables {sorted(types)}",
    )
    one_host = bool(backend.caps & 64)
    bare.expect(
        not (found.spans_hosts and one_host),
        "the descriptor has spans_hosts=True, but the communicator table declares ONE_HOST",
    )
    if found.library is not None:
        bare.expect(
            Path(found.library).is_absolute(),
            f"the descriptor's library is not an absolute path: {found.library}",
        )


@case("L0.import", "describing takes under 100 ms, and imports no compiled module", ranks=0)
def importing(bare: Bare) -> None:
    described(bare)
    seconds = []
    for _ in range(3):
        seen = _answer_of(_MEASURE, bare.target.entry or "")
        bare.expect("fault" not in seen, f"describing failed: {seen.get('fault')}")
        seconds.append(seen["seconds"])
    bare.expect(
        not seen["compiled"], f"describing imports {', '.join(seen['compiled'])}; leave that to probe or load"
    )
    # Checked last, because an earlier fault may be the reason. Processor time, and the best of three runs, so that other
    # work of the machine does not count.
    bare.expect(
        min(seconds) < IMPORT_SECONDS, f"describing takes {min(seconds) * 1000:.0f} ms; 100 ms are allowed"
    )
    bare.expect(seen["threads"] == 1, f"describing starts {seen['threads'] - 1} threads")
    bare.expect(not seen["environment"], f"describing changes the environment: {seen['environment'][:3]}")
    bare.note("describing", f"{min(seconds) * 1000:.1f} ms")


@case(
    "L0.probe",
    "probe answers within its time limit, and names what is missing if the backend cannot work",
    ranks=0,
)
def probing(bare: Bare) -> None:
    from hvd_core.backends._discovery.installed_backend import ProbeFailed, probe
    from hvd_core.backends.descriptor import Unavailable

    answer = probe(described(bare), 5.0)
    bare.expect(not isinstance(answer, ProbeFailed), str(getattr(answer, "reason", "")))
    if isinstance(answer, Unavailable):
        bare.expect(bool(answer.reason), "probe answers Unavailable without a reason")
        bare.skip(f"unavailable here: {answer.reason}")
    else:
        bare.note("probe", answer.detail or "available")


# ---- the package works in any folder: a process imports it from each --------------------------------------------------

ODD = "a blank, ä and 中"
_COPIED = (".py", ".toml", ".json", ".txt")

# Describes and probes. The answer has no messages of the plugin, because they may show its path.
_ASK = """
import sys, json, os, importlib
from hvd_core.backends.descriptor import Available, Unavailable
place, entry, folder, variable = json.loads(sys.argv[1])
os.chdir(folder)
if place:
    sys.path.insert(0, place)
importlib.invalidate_caches()
module, _, attribute = entry.partition(":")
try:
    descriptor = getattr(importlib.import_module(module), attribute)()
    if variable and getattr(descriptor.probe(), "library", ""):
        found = descriptor.probe().library
        os.symlink(os.path.dirname(found), "of the vendor")
        os.environ[variable] = os.path.abspath(os.path.join("of the vendor", os.path.basename(found)))
    answer = descriptor.probe()
    said = {Available: "available", Unavailable: "unavailable"}.get(type(answer), repr(answer))
    why = getattr(answer, "reason", "")
    library = descriptor.library is not None and os.path.isfile(descriptor.library)
except BaseException as error:
    said, why, library = "an exception", f"{type(error).__name__}: {error}", False
print()
print(json.dumps({"said": said, "why": why, "library": library}))
"""


@case(
    "L0.paths",
    "describe and probe answer alike from a folder with a blank, other letters, behind a link",
    ranks=0,
)
def paths(bare: Bare) -> None:
    described(bare)
    entry = bare.target.entry or ""
    top = entry.partition(":")[0].partition(".")[0]
    with tempfile.TemporaryDirectory() as made:
        odd = Path(made).resolve() / ODD
        (odd / "site").mkdir(parents=True)
        (odd / "elsewhere").mkdir()
        (odd / "link").symlink_to("site")
        whole = _mirror(top, odd / "site")
        usual = _ask("", entry, os.getcwd())
        variable = f"HOROVOD_BACKEND_{bare.target.name.upper().replace('-', '_')}_LIBRARY"
        folders = {
            "another current folder": ("", odd / "elsewhere", ""),
            "a folder with a blank and other letters": (odd / "site", os.getcwd(), ""),
            "a folder behind a link": (odd / "link", os.getcwd(), ""),
            "a relative folder": ("site", odd, ""),
            "a link to the vendor's library": ("", odd / "elsewhere", variable),
        }
        for what, (place, folder, of_vendor) in folders.items():
            found = _ask(str(place), entry, str(folder), of_vendor)
            if place and not whole:  # an editable installation keeps its library somewhere else
                found["library"] = usual["library"]
            bare.expect(
                (found["said"], found["library"]) == (usual["said"], usual["library"]),
                f"with {what} {_in_words(found)}; otherwise {_in_words(usual)}",
            )
        bare.note("places", ", ".join(folders))


def _mirror(top: str, site: Path) -> bool:
    """Puts a package, or a module of one file, into ``site``: a copy of the small files and links to the others. Returns
    whether the backend's library is among them."""
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return False
    if not spec.submodule_search_locations:
        for file in (Path(spec.origin), *Path(spec.origin).parent.glob("*.hvd.toml")):
            shutil.copy(file, site)
        return False
    package, libraries = Path(spec.origin).parent, []

    def copy_or_link(source: str, target: str) -> None:
        if ".so" in os.path.basename(source):
            libraries.append(source)
        if source.endswith(_COPIED):
            shutil.copy(source, target)
        else:
            os.symlink(source, target)

    ignore = shutil.ignore_patterns("*.pyc")
    shutil.copytree(package, site / top, copy_function=copy_or_link, ignore=ignore)
    for libs in package.parent.glob(f"{top}*.libs"):  # where auditwheel puts what it has found
        (site / libs.name).symlink_to(libs)
    return bool(libraries)


def _ask(place: str, entry: str, folder: str, variable: str = "") -> dict[str, Any]:
    seen = _answer_of(_ASK, json.dumps([place, entry, folder, variable]))
    if "fault" in seen:
        return {"said": "a process that failed", "why": seen["fault"], "library": False}
    return seen


def _in_words(answer: dict[str, Any]) -> str:
    text = f"the answer is {answer['said']}"
    text += f" ({answer['why']})" if answer["why"] else ""
    return text if answer["library"] else f"{text}, and the library of the descriptor does not exist"
