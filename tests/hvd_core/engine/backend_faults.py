"""The faults of a backend in a running job, for test_backend_faults.py and the table in docs/plugins.md.

tests/backends/host/hanging makes each of them, on rank 1 of two; those of a device table, tests/backends/host/fake_stream.
"""

from __future__ import annotations

from dataclasses import dataclass

THROWN = "a C++ exception has left the backend: the 7th element of 3 (INTERNAL)"
COLLECTIVE = "(allreduce, 4194304 bytes)"


@dataclass(frozen=True)
class Fault:
    """``calls``: those with the fault; with "never" among them, requests are never complete, so that the engine comes to
    req_wait. ``how``: throw, crash, exit (with code 5), exit0, thread_exit0 (in another thread) or hang. ``says``: in the
    error on rank 1 if the call throws, by the launcher if the process ends; "" if nothing is said. ``often``: with every
    run of the tests."""

    phase: str
    text: str
    calls: str
    how: str
    says: str
    often: bool = False

    @property
    def code(self) -> int:
        """The job's exit code."""
        return {"throw": 0, "crash": 139, "exit": 5}.get(self.how, 1)


ENDED = "horovodrun: rank 1 has ended "

FAULTS = [
    Fault("load", "the entry function throws", "load", "throw", "its entry function threw a C++ exception: the 7th"),
    Fault("load", "the entry function crashes", "load", "crash", f"{ENDED}in the phase load of backend 'hanging'", True),
    Fault("load", "the entry function exits", "load", "exit", f"{ENDED}in the phase load of backend 'hanging'"),
    Fault("open", "create throws", "create", "throw", f"hanging: create: {THROWN}", True),
    Fault("open", "create crashes", "create", "crash", f"{ENDED}in the call create of backend 'hanging'"),
    Fault("open", "create exits", "create", "exit", f"{ENDED}in the call create of backend 'hanging'", True),
    Fault("load", "the entry function exits with code 0", "load", "exit0", f"{ENDED}in the phase load of backend 'hanging'"),
    Fault("load", "the entry function hangs", "load", "hang", f"{ENDED}in the phase load of backend 'hanging'", True),
    Fault("open", "create exits with code 0", "create", "exit0", f"{ENDED}in the call create of backend 'hanging'", True),
    Fault("open", "create hangs", "create", "hang", "hanging: create: 1 of 1 ranks did not come for the shared memory in time, rank 1 first (TIMEOUT)", True),
    Fault("open", "query hangs", "query", "hang", "the backend 'hanging' has not returned from query for ", True),
    Fault("open", "query crashes", "query", "crash", f"{ENDED}in the call query of backend 'hanging'"),
    Fault("run", "collective throws", "collective", "throw", f"hanging: allreduce: {THROWN}", True),
    Fault("run", "collective crashes", "collective", "crash", f"{ENDED}in the call collective of backend 'hanging' {COLLECTIVE}", True),
    Fault("run", "collective exits", "collective", "exit", f"{ENDED}in the call collective of backend 'hanging' {COLLECTIVE}"),
    Fault("run", "collective exits with code 0", "collective", "exit0", f"{ENDED}in the call collective of backend 'hanging' {COLLECTIVE}", True),
    Fault("run", "a thread of its own exits with code 0 in collective", "collective", "thread_exit0", f"{ENDED}in the call collective of backend 'hanging' {COLLECTIVE}"),
    Fault("run", "req_test and req_wait throw", "req_test,req_wait", "throw", f"hanging: allreduce: {THROWN}"),
    Fault("run", "req_wait crashes", "never,req_wait", "crash", f"{ENDED}in the call req_wait of backend 'hanging' {COLLECTIVE}"),
    Fault("run", "req_free throws", "req_free", "throw", ""),
    Fault("end", "destroy throws", "destroy", "throw", "", True),
    Fault("end", "destroy crashes", "destroy", "crash", f"{ENDED}in the call destroy of backend 'hanging'"),
    Fault("end", "destroy exits", "destroy", "exit", f"{ENDED}in the call destroy of backend 'hanging'"),
    Fault("end", "destroy exits with code 0", "destroy", "exit0", f"{ENDED}in the call destroy of backend 'hanging'", True),
]  # fmt: skip

# On a device, in the calls of its table and in async_error. Another thread of the rank may be in a call as well; so the
# text may name both.
DEVICE_FAULTS = [
    Fault(phase, f"{call}{' of the device table' * (call != 'async_error')} crashes", call, "crash", f"in the call {call} of backend 'fake_stream'", call in ("event_record", "mem_free"))
    for phase, call in (
        ("open", "open"), ("run", "mem_alloc"), ("run", "event_record"), ("run", "event_query"),
        ("run", "batched_copy_scale"), ("run", "async_error"), ("end", "stream_sync"), ("end", "mem_free"),
    )
]  # fmt: skip


def table() -> str:
    """The table of the page, in Markdown."""
    lines = ["| phase | fault | what the job says |", "|---|---|---|"]
    for fault in [*FAULTS, *DEVICE_FAULTS]:
        says = fault.says or "no error; the job goes on"
        if fault.how == "hang" and not says.startswith(ENDED):
            limit = "N s (HOROVOD_START_TIMEOUT)" if says.endswith("for ") else ""
            says = f"an error on each rank: `{says}{limit}`"
        elif fault.how != "throw":
            says = f"`{ENDED}{says.removeprefix(ENDED).removesuffix(COLLECTIVE).strip()}`"
        elif fault.says:
            says = f"an error on each rank, on rank 1: `{says}`"
        lines.append(f"| {fault.phase} | {fault.text} | {says} |")
    return "\n".join(lines) + "\n"
