"""The program of the ranks of whole jobs over gloo: two sums, and the report of the backends."""

import numpy as np

import hvd_core as hvd


def main():
    hvd.init()
    total = hvd.allreduce(np.full(1000, hvd.rank() + 1.0), op=hvd.Sum)
    assert (total == 3).all()
    mean = hvd.allreduce(np.full(10, hvd.rank(), np.int32), op=hvd.Average)
    assert (mean == 0).all()
    print(hvd.backend_report())


if __name__ == "__main__":
    main()
