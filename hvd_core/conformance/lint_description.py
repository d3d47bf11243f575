"""L0: what a backend's package says about itself, and what saying so costs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from hvd_core._base import sandbox
from hvd_core.conformance.alone import Bare
from hvd_core.conformance.cases import case

IMPORT_SECONDS = 0.1

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


def described(bare: Bare):
    """The descriptor. Skips the case if the backend is not in a wheel."""
    if bare.target.descriptor is None:
        bare.skip(f"the backend is not in a wheel ({bare.target.origin}): it has no descriptor")
    return bare.target.descriptor


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version without zeros at the end: (0, 3) of ``0.3.0+cuda12``."""
    match = re.match(r"[0-9.]+", version)
    numbers = [int(part) for part in match[0].split(".") if part] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@case("L0.descriptor", "the descriptor agrees with the library", ranks=0)
def descriptor(bare: Bare) -> None:
    told, backend = described(bare), bare.backend
    bare.expect(
        told.name == bare.target.name,
        f"the descriptor's name is '{told.name}', the entry point's '{bare.target.name}'",
    )
    hdr = backend.api.hdr
    bare.expect(
        tuple(told.abi) == (hdr.major, hdr.minor),
        f"the descriptor has ABI {told.abi[0]}.{told.abi[1]}, the library {hdr.major}.{hdr.minor}",
    )
    wheel, library = bare.target.version, (backend.api.version or b"").decode()
    bare.expect(
        not wheel or _release(wheel) == _release(library),
        f"the wheel has version {wheel}, the library in it {library}: one of them is left of another build",
    )
    has = {name for name in ("device", "comm") if getattr(backend, name) is not None}
    bare.expect(
        set(told.provides) == has,
        f"the descriptor provides {sorted(told.provides)}, the library has {sorted(has)}",
    )
    types = set(
        filter(None, ((backend.comm.device_types or b"") if backend.comm else b"").decode().split(","))
    )
    if backend.device:
        types.add(backend.device.device_type.decode())
    if backend.caps & 128:
        types.add("cpu")
    bare.expect(
        set(told.devices) <= types,
        f"the descriptor names devices {sorted(told.devices)}, the tables {sorted(types)}",
    )
    one_host = bool(backend.caps & 64)
    bare.expect(
        not (told.spans_hosts and one_host),
        "the descriptor has spans_hosts=True, but the communicator table declares ONE_HOST",
    )
    if told.library is not None:
        bare.expect(
            Path(told.library).is_absolute(),
            f"the descriptor's library is not an absolute path: {told.library}",
        )


@case("L0.import", "describing takes under 100 ms, and imports no compiled module", ranks=0)
def importing(bare: Bare) -> None:
    described(bare)
    seconds = []
    for _ in range(3):
        done = sandbox.run([sys.executable, "-c", _MEASURE, bare.target.entry], timeout_s=60)
        bare.expect(not done.timed_out, "describing timed out after 60 s")
        bare.expect(done.returncode == 0, f"describing failed: {done.stderr.strip().splitlines()[-1:]}")
        seen = json.loads(done.stdout.splitlines()[-1])
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
    from hvd_core.backends.descriptor import Unavailable
    from hvd_core.backends.discovery.describe_and_probe import ProbeFailed, probe

    told = described(bare)
    answer = probe(told, 5.0)
    bare.expect(not isinstance(answer, ProbeFailed), str(getattr(answer, "reason", "")))
    if isinstance(answer, Unavailable):
        bare.expect(bool(answer.reason), "probe answers Unavailable without a reason")
        bare.skip(f"unavailable here: {answer.reason}")
    bare.note("probe", answer.detail or "available")
