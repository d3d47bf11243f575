"""A rank that prints a sum. Its name, which stands in tracebacks, has not the word that the test looks for."""

import numpy as np

import hvd_core as hvd


def main():
    hvd.init()
    total = hvd.allreduce(np.full(3, hvd.rank() + 1.0), name="x", op=hvd.Sum)
    print("sum", total.tolist(), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
