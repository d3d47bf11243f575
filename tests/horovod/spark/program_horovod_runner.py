"""A program of test_spark_parts.py: HorovodRunner(np=-2), once well and once with a failure."""

from sparkdl import HorovodRunner


def train(factor):
    import numpy as np
    from sparkdl.horovod import log_to_driver

    import hvd_core as hvd

    hvd.init()
    print(f"rank {hvd.rank()} prints")
    log_to_driver(f"told by {hvd.rank()}")
    total = float(hvd.allreduce(np.full(4, hvd.rank() + 1.0), op=hvd.Sum)[0]) * factor
    if factor == 0 and hvd.rank() == 1:
        raise ValueError("bad data in file 17")
    if factor == 0:
        hvd.allreduce(np.ones(1), name="never")
    return total if hvd.rank() == 0 else object


if __name__ == "__main__":
    print("value", HorovodRunner(np=-2).run(train, factor=10))
    try:
        HorovodRunner(np=-2).run(train, factor=0)
    except RuntimeError as error:
        print(str(error).splitlines()[-1], "of", type(error.__cause__).__name__)
