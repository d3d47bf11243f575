"""A rank of one alternative, started by the conductor: ``python -m hvd_core.bench._worker NAME``."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

from hvd_core.bench._conductor import Unavailable
from hvd_core.bench._serving import env_rank, pin, serve
from hvd_core.bench.alternative import (
    Alternative,
    Call,
    Place,
    catalog,
    data_of,
    host_dtype,
    wrong,
)


def answer(alternative: Alternative, command: dict[str, Any]) -> dict[str, Any]:
    """{"ns": of all calls, "wrong": elements, or None without a check}, or {"without": why} for a call that this
    way lacks.

    ``command``: {"call": the fields of Call, "iters", "warmup", "check"}. The calls follow each other without a
    barrier, as in the usual tests.
    """
    call = Call(**command["call"])
    place = alternative.place
    try:
        bound = alternative.bind(call)
    except Unavailable as why:
        return {"without": str(why)}
    errors = None
    if command["check"]:
        bound.fill(data_of(call, place.rank, place.size))
        bound.run()
        bound.finish()
        errors = wrong(np.asarray(bound.result()), call, place.rank, place.size)
    # Memory that was never written has no pages yet. Sums of zeros stay zeros, however often they are summed.
    bound.fill(np.zeros(call.sent(place.size), host_dtype(call.dtype)))
    for _ in range(command["warmup"]):
        bound.run()
    bound.finish()
    alternative.barrier()
    run, iters = bound.run, range(command["iters"])
    begin = time.perf_counter_ns()
    for _ in iters:
        run()
    bound.finish()
    return {"ns": time.perf_counter_ns() - begin, "wrong": errors}


def main(name: str) -> None:
    rank, size = env_rank()
    pin(rank)
    place = Place(rank, size, rank, os.environ["HVD_BENCH_DEVICE"], os.environ["HVD_BENCH_SCRATCH"], None)
    alternative = catalog()[name]()(place)
    serve(rank, lambda command: answer(alternative, command), alternative.close)


if __name__ == "__main__":
    main(sys.argv[1])
