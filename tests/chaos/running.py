"""Runs scenarios, and judges how their ranks have ended."""

import multiprocessing.connection
import os
import sys
import threading
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for folder in ("", "chaos", "engine"):
    sys.path.insert(0, str(TESTS / folder))

from forked import ForkedRanks  # noqa: E402

import hvd_core.backends.selection.at_init  # noqa: E402 (before the fork, so that ranks need not import it)
import hvd_core.bootstrap.links  # noqa: E402
import hvd_core.compiled_part  # noqa: E402
import native_program  # noqa: E402
from chaos_rank import Rank, environment  # noqa: E402
from horovod.runner.ended_ranks import EndedRanks  # noqa: E402
from hvd_core.bootstrap import StoreServer  # noqa: E402
from scenarios import OPERATION_SECONDS, scenario  # noqa: E402

SECRET = bytes(range(32))
# Within this time a job has ended, also on a busy machine: much more than any part of it needs.
DEADLINE_SECONDS = 60.0
# What an error tells besides the number of the victim: who left first, what a lost message did, which call hangs.
NAMED = (" died", "was the first to leave", "deadline", "the backend '", "message", "shut down")
HANGING = TESTS / "backends" / "hanging" / "hanging.cc"

__all__ = ["OPERATION_SECONDS", "run", "scenario"]


hvd_core.compiled_part.load()


def run(chosen):
    """Runs one scenario. Returns the seconds from the fault to the report of each other rank that failed.

    Raises AssertionError if a rank hangs, or fails without naming the cause.
    """
    inner = Path(hvd_core.__file__).parent / "lib" / "libhvd_backend_shm.so"
    hanging = (native_program.backend(HANGING), inner) if chosen.backend == "hanging" else None
    at = multiprocessing.RawValue("d", 0.0)
    with StoreServer("127.0.0.1", SECRET) as server:
        address = server.address

        def work(rank, pipe):
            os.environ.update(environment(chosen, rank, address, SECRET, hanging))
            return Rank(chosen, rank, at).run()

        with ForkedRanks(chosen.size, work) as ranks:
            launcher = threading.Thread(
                target=_tell_of_the_end, args=(ranks.processes[chosen.victim], chosen, address)
            )
            launcher.start()
            results = _results(ranks, chosen)
        launcher.join()
    others = [(rank, result) for rank, result in enumerate(results) if rank != chosen.victim]
    return [seconds for rank, result in others if (seconds := _judge(chosen, rank, result)) is not None]


def _tell_of_the_end(process, chosen, address):
    """What horovodrun does when a process has ended."""
    multiprocessing.connection.wait([process.sentinel])
    EndedRanks(address, SECRET).tell(chosen.victim, 0, None)


def _results(ranks, chosen):
    """The result of each rank; None of the victim where it has ended or is stopped."""
    end, results = time.monotonic() + DEADLINE_SECONDS, []
    for rank, pipe in enumerate(ranks.pipes):
        result = None
        if rank != chosen.victim or chosen.fault != "stop":
            assert pipe.poll(max(0.0, end - time.monotonic())), f"{chosen}: rank {rank} hangs"
            try:
                good, result = pipe.recv()
                assert good, f"{chosen}: {result}"
            except EOFError:
                assert rank == chosen.victim, f"{chosen}: rank {rank} has died too"
        results.append(result)
    return results


def _judge(chosen, rank, result):
    """The seconds from the fault to the report; None if the rank has ended well."""
    kinds, text, seconds = result
    if kinds == "fine":
        return None
    shown = f"{chosen}: rank {rank}: {kinds[0]}: {text}"
    assert "HorovodInternalError" in kinds or "BackendError" in kinds, shown
    assert f"rank {chosen.victim}" in text or any(word in text for word in NAMED), shown
    return seconds
