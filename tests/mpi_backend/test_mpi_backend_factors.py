"""What MPI's backend leaves to the engine: factors of integers, which it does not apply itself."""

PROGRAM = """
import numpy as np
import hvd_core as hvd

hvd.init()
r, n = hvd.rank(), hvd.size()
for dtype in (np.uint8, np.int32, np.int64):
    x = np.arange(5).astype(dtype) + r
    for pre, post in ((0.5, 1.0), (1.0, 0.5), (3.0, 0.5)):
        ours = [((np.arange(5) + k) * pre).astype(dtype) for k in range(n)]
        total = (sum(ours) * post).astype(dtype)
        said = hvd.allreduce(x, op=hvd.Sum, prescale_factor=pre, postscale_factor=post)
        assert said.tolist() == total.tolist(), (dtype, pre, post, said, total)
        assert x.tolist() == (np.arange(5) + r).tolist(), "the input was written to"
        part = hvd.reducescatter(x[:4], op=hvd.Sum, prescale_factor=pre, postscale_factor=post)
        assert part.tolist() == np.split(total[:4], n)[r].tolist(), (dtype, pre, post, part, total)
print("done")
"""


def test_integers_with_factors(mpi_job):
    mpi_job.run(PROGRAM)
