"""A rank of one alternative, started by the conductor: ``python -m hvd_core.bench.worker NAME``."""

from __future__ import annotations

import os
import sys

from hvd_core.bench.alternative import Place, catalog, device_of_rank
from hvd_core.bench.measuring import answer
from hvd_core.bench.serving import env_rank, pin, serve


def main(name: str) -> None:
    rank, size = env_rank()
    pin(rank)
    place = Place(rank, size, rank, device_of_rank(), os.environ["HVD_BENCH_SCRATCH"], None)
    alternative = catalog()[name]()(place)
    serve(rank, lambda command: answer(alternative, command), alternative.close)


if __name__ == "__main__":
    main(sys.argv[1])
