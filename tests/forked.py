"""Ranks as forked processes of a test: each does one piece of work, whose result is collected with a time limit."""

import multiprocessing
import os
import signal
import time
import traceback

FORK = multiprocessing.get_context("fork")


def _process(pipe, rank, work):
    try:
        pipe.send((True, work(rank, pipe)))
    except BaseException as error:
        pipe.send((False, f"rank {rank}: {error}\n{traceback.format_exc()}"))
    finally:
        pipe.close()
        os._exit(0)


class ForkedRanks:
    """`size` processes that call work(rank, pipe); `pipes` are our ends. None outlives the context."""

    def __init__(self, size, work):
        self.processes, self.pipes = [], []
        for rank in range(size):
            mine, theirs = FORK.Pipe()
            process = FORK.Process(target=_process, args=(theirs, rank, work))
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(mine)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.join(0.5)
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                process.join()

    def results(self, timeout, lost=()):
        """The results of work(), in rank order. Ranks in `lost` may lack one; AssertionError names the failed ranks."""
        end = time.monotonic() + timeout
        results, failures = [], []
        for rank, pipe in enumerate(self.pipes):
            try:
                if not pipe.poll(max(0.0, end - time.monotonic())):
                    failures.append(f"rank {rank}: no result in {timeout} s")
                    continue
                good, value = pipe.recv()
                (results if good else failures).append(value)
            except EOFError:
                results.append(None)
                if rank not in lost:
                    failures.append(f"rank {rank} died")
        assert not failures, "\n".join(failures)
        return results
