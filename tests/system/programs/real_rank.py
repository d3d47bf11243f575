"""One rank of a job that runs many random programs, one after another, through the NumPy API.

Started by real_jobs.py through the launcher: `real_rank.py JOBS FOLDER SECONDS LEAST`. Every result is compared with
the result of the sequential model. The first wrong result ends the process with code 4, a program that makes no
progress with code 5, and a line that starts with `MISTAKE` says where. A second thread keeps the watch.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np

import hvd_core as hvd
import values
from hvd_core._runtime import runtime
from hvd_core.numpy_api import _keep

HANG_SECONDS = float(os.environ.get("HVD_TEST_HANG_SECONDS", "30"))


class Mistake(Exception):
    pass


class Rank:
    """Runs one program's operations on this rank."""

    def __init__(self, job, folder: Path, number: int):
        self.rank = hvd.rank()
        self.job, self.folder, self.number = job, folder, number
        self.rng = random.Random(f"{job.seed} {self.rank}")
        self.sets: dict[str, object] = {"w": None}
        self.set_ranks = {"w": tuple(range(hvd.size()))}
        self.counts: dict[tuple, int] = {}
        self.joins = 0
        self.outstanding: dict[tuple, list] = {}  # key -> [(n, handle, kind, in-place arrays)]
        self.last_joined: list[int] = []
        self.checked = 0
        self.doing = ""

    def run(self) -> None:
        for op in self.job.program[self.rank]:
            self.doing = " ".join(map(str, op))
            if self.rng.random() < 0.1:
                time.sleep(self.rng.choice([0.0001, 0.0005, 0.003]))
            kind, *rest = op
            getattr(self, "do_" + {"await": "wait_for"}.get(kind, kind))(*rest)
        self.doing = "waiting for the outstanding requests"
        for key in list(self.outstanding):
            self.do_wait(*key)
        if not self.job.ends_early:
            self.doing = "ending the sets that are left"
            for name in [name for name in self.sets if name != "w"]:
                self.do_end(name)

    # The operations of the language.

    def do_submit(self, in_set: str, name: str, sig: str) -> None:
        n = self.count((in_set, name))
        ranks = self.set_ranks[in_set]
        call = values.parse(sig)
        given = values.inputs(call, (in_set, name), n, self.rank, ranks)
        user_name = None if "?" in name else name.partition(".")[2]
        in_place = self.rng.random() < 0.5
        options = {"name": user_name, "process_set": self.sets[in_set]}
        try:
            handle = self.start(call, given, in_place, options, n, (in_set, name))
        except hvd.HorovodInternalError as error:
            self.compare((in_set, name), n, error, None)
            return
        self.outstanding.setdefault((in_set, name), []).append((n, handle, call))

    def start(self, call, given: list, in_place: bool, options: dict, n: tuple, key: tuple):
        op = getattr(hvd, call.op) if call.op else None
        if call.kind == "barrier":
            ps = options["process_set"]
            return _keep(runtime.engine().barrier(0 if ps is None else ps.process_set_id), "ready", [], None)
        if call.kind == "allreduce":
            function = hvd.allreduce_async_ if in_place else hvd.allreduce_async
            return function(given[0], op=op, **options)
        if call.kind == "grouped_allreduce":
            function = hvd.grouped_allreduce_async_ if in_place else hvd.grouped_allreduce_async
            return function(given, op=op, **options)
        if call.kind == "reducescatter":
            return hvd.reducescatter_async(given[0], op=op, **options)
        if call.kind == "broadcast":
            function = hvd.broadcast_async_ if in_place else hvd.broadcast_async
            return function(given[0], call.root, **options)
        if call.kind == "allgather":
            return hvd.allgather_async(given[0], **options)
        rows = values.splits(key, n, self.rank, self.set_ranks[key[0]])
        return hvd.alltoall_async(given[0], splits=rows, **options)

    def do_fail(self, in_set: str, name: str) -> None:
        """A call that is refused on this rank; the engine tells the others."""
        self.count((in_set, name))
        kind, _, user_name = name.partition(".")
        options = {"name": user_name, "process_set": self.sets[in_set]}
        calls = {
            "allreduce": lambda: hvd.allreduce_async_(np.ones((4, 4)).T, **options),
            "broadcast": lambda: hvd.broadcast_async_(np.frombuffer(b"readonly"), self.rank, **options),
            "alltoall": lambda: hvd.alltoall_async(np.ones(1), splits=[100] * hvd.size(), **options),
            "reducescatter": lambda: hvd.reducescatter_async(np.float32(1), **options),
        }
        ps = self.sets[in_set]
        number = 0 if ps is None else ps.process_set_id
        try:
            if kind not in calls:
                return runtime.engine().poison(name, "failed on purpose", number)
            calls[kind]()
        except ValueError:
            return
        except hvd.HorovodInternalError as error:
            if self.job.ends_early:
                return
            raise Mistake(f"a call that must be refused raised {error!r}") from None
        raise Mistake("a call that must be refused was not")

    def do_poll(self, in_set: str, name: str) -> None:
        for _, handle, _ in self.outstanding.get((in_set, name), ()):
            hvd.poll(handle)

    def do_wait(self, in_set: str, name: str) -> None:
        for n, handle, call in self.outstanding.pop((in_set, name), ()):
            result, error = None, None
            try:
                result = hvd.synchronize(handle)
            except hvd.HorovodInternalError as failure:
                error = failure
            if error is None and call.kind == "alltoall":
                result, _ = result
            got = result if isinstance(result, list) else [result]
            self.compare((in_set, name), n, error, got)

    def do_join(self) -> None:
        try:
            self.last_joined.append(hvd.join())
        except hvd.HorovodInternalError as error:
            self.only_at_an_end(error)
        self.joins += 1
        self.counts.clear()

    def do_add(self, name: str, ranks: tuple) -> None:
        try:
            self.sets[name] = hvd.add_process_set(list(ranks))
        except (ValueError, hvd.HorovodInternalError) as error:
            self.only_at_an_end(error)
            self.sets[name] = None  # what follows fails as well
        self.set_ranks[name] = tuple(ranks)

    def do_end(self, name: str) -> None:
        ps = self.sets.pop(name)
        if ps is None:
            return
        try:
            if not hvd.remove_process_set(ps):
                raise Mistake(f"process set {name} could not be removed")
        except (ValueError, hvd.HorovodInternalError) as error:
            self.only_at_an_end(error)

    def do_signal(self, tag: int) -> None:
        (self.folder / f"signal-{self.number}-{tag}").touch()

    def do_wait_for(self, tag: int) -> None:
        while not (self.folder / f"signal-{self.number}-{tag}").exists():
            time.sleep(0.0005)

    def do_leave(self) -> None:
        hvd.shutdown()
        self.outstanding.clear()  # handles end with the engine

    def do_abort(self) -> None:
        # It may break what others still have to hear of the meeting before this program.
        while len(list(self.folder.glob(f"met-{self.number - 1}-*"))) < hvd.size():
            time.sleep(0.001)
        runtime.engine().abort(f"rank {self.rank} breaks down on purpose")

    # Their outcome.

    def count(self, key: tuple) -> tuple:
        self.counts[key] = self.counts.get(key, 0) + 1
        return (self.joins, self.counts[key])

    def only_at_an_end(self, error: Exception) -> None:
        if not self.job.ends_early:
            raise Mistake(f"{error!r} was not expected") from None

    def compare(self, key: tuple, n: tuple, error: Exception | None, got: list | None) -> None:
        self.checked += 1
        round_ = self.job.rounds.get((self.rank, key, n))
        wanted = self.job.results.get((self.rank, key, n))
        if error is not None:
            if wanted == "exec" and not self.job.ends_early:
                raise Mistake(f"{key} {n} failed, though all ranks agree: {error}")
            if wanted == "ended" and "Process set has been removed" not in str(error):
                raise Mistake(f"{key} {n}: its set has ended, but the error is: {error}")
            return
        if wanted != "exec":
            raise Mistake(f"{key} {n} succeeded; it should have failed ({wanted})")
        if said := values.wrong(round_, self.rank, got):
            raise Mistake(said)


def watch(state: dict) -> None:
    """Ends the process when a program makes no progress for long."""
    seen, since = None, time.monotonic()
    while True:
        time.sleep(0.25)
        if state["at"] != seen:
            seen, since = state["at"], time.monotonic()
        elif time.monotonic() - since > HANG_SECONDS:
            run = state["run"]
            print(f"MISTAKE hang in program {state['at']} at: {run and run.doing}", flush=True)
            faulthandler.dump_traceback(all_threads=True)
            os._exit(5)


def main() -> None:
    jobs = pickle.loads(Path(sys.argv[1]).read_bytes())
    folder, until = Path(sys.argv[2]), time.monotonic() + float(sys.argv[3])
    least = int(sys.argv[4])
    state = {"at": -1, "run": None}
    threading.Thread(target=watch, args=(state,), daemon=True).start()
    hvd.init()
    me, checked = hvd.rank(), 0
    (folder / f"met--1-{me}").touch()
    for number, job in enumerate(jobs):
        state.update(at=number, run=None)
        run = state["run"] = Rank(job, folder, number)
        try:
            run.run()
            run.doing = "meeting the others after the program"
            if job.ends_early:
                hvd.shutdown()
                hvd.init()
            # All ranks are in the same program, have heard of the same joins, and stop together.
            joins = [] if job.ends_early else run.last_joined
            mine = np.array([[number, *joins, number + 1 < least or time.monotonic() < until]])
            everyone = hvd.allgather(mine, name="between programs")
            (folder / f"met-{number}-{me}").touch()
            if (everyone[:, :-1] != mine[:, :-1]).any():
                raise Mistake(
                    f"number of the program and who joined last, by rank: {everyone[:, :-1].tolist()}"
                )
        except Mistake as mistake:
            print(f"MISTAKE in program {number} at: {run.doing}: {mistake}", flush=True)
            os._exit(4)
        except Exception as error:
            print(f"MISTAKE in program {number} at: {run.doing}: {error!r}", flush=True)
            faulthandler.dump_traceback(all_threads=True)
            os._exit(4)
        checked += run.checked
        if not everyone[0, -1]:
            break
    print(f"DONE {number + 1} programs, rank {me} compared {checked} results", flush=True)


if __name__ == "__main__":
    main()
