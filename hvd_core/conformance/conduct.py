"""L3: the backend's conduct in the process: each call comes back, and the process's own state stays as it is."""

from __future__ import annotations

import ctypes as C
import locale
import os

from hvd_core.conformance import abi
from hvd_core.conformance.abi import OK, P
from hvd_core.conformance.cases import Kit, Sum, case, plain_type
from hvd_core.conformance.lint import process_state


@case(
    "L3.calls",
    "each call of the communicator table comes back; the slowest ones are reported",
    ranks=2,
    seconds=120,
)
def calls(kit: Kit) -> None:
    # A call that does not come back is found by call_watch.py, whichever case it is in. This case makes every call once.
    plain_type(kit)
    # Longer than the watch waits, so that a rank which hangs is named before the others run into their deadlines.
    long = kit.limit(60)
    kit.backend.calls.longest.clear()
    for space in kit.spaces():
        comm = kit.comm(space, seconds=long)
        for how in ("wait", "poll"):
            step = Sum(kit, comm, 1000)
            step.start(seconds=long).wait(how)
            kit.expect(not step.wrong(), step.wrong())
        comm.async_error()
        if kit.backend.has("comm", "group_begin"):
            step = Sum(kit, comm, 40)
            for pending in comm.group([step.arguments() | {"seconds": long}]):
                pending.wait()
        if kit.backend.has("comm", "mem_register"):
            handle = P()
            region = space.region(4096, 64)
            region.poison()
            if kit.backend.call("comm", "mem_register", comm.handle, region.buf, C.byref(handle),
                                allowed=(OK, abi.UNSUPPORTED)) == OK:  # fmt: skip
                kit.backend.call("comm", "mem_deregister", comm.handle, handle)
        if kit.backend.has("comm", "split"):
            kit.comm(space, tag="split", parent=comm, seconds=long)
        if kit.backend.caps & abi.CAP_ABORT:
            other = kit.comm(space, seconds=long)
            kit.meet()
            other.abort()
        comm.finalize(kit.limit(20))
    slowest = sorted(kit.backend.calls.longest.items(), key=lambda item: -item[1])[:5]
    kit.note("slowest calls", ", ".join(f"{slot} {seconds * 1000:.1f} ms" for slot, seconds in slowest))


@case(
    "L3.process",
    "a communicator changes nothing in the process: signals, variables, folder, locale, arithmetic, standard output",
)
def process(kit: Kit) -> None:
    plain_type(kit)
    for space in kit.spaces():
        before, variables = _state(), _variables()
        comm = kit.comm(space)
        step = Sum(kit, comm, 1000)
        step.start().wait()
        kit.expect(not step.wrong(), step.wrong())
        now, later = _state(), _variables()
        for what, value in now.items():
            kit.expect(
                value == before[what],
                f"making and using a communicator changes the process's {what}: {before[what]} before, {value} now",
            )
        changed = sorted(name for name, value in variables.items() if later.get(name) != value)
        kit.expect(
            not changed, f"making a communicator changes or removes environment variables: {changed[:3]}"
        )
        added = sorted(set(later) - set(variables))
        if added:
            kit.note("environment variables that it adds", ", ".join(name.decode() for name in added[:5]))


def _state() -> dict:
    kept = process_state()
    del kept["threads"], kept["environment variables"]
    kept["locale"] = locale.setlocale(locale.LC_ALL)
    for name, number in (("standard output", 1), ("standard error", 2)):
        status = os.fstat(number)
        kept[name] = (status.st_dev, status.st_ino)
    return kept


def _variables() -> dict[bytes, bytes]:
    """The variables as C code sees them; os.environ is a copy from the process's start."""
    pairs = (text.partition(b"=") for text in process_state()["environment variables"])
    return {name: value for name, _, value in pairs}
