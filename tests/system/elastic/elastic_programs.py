"""What the programs of these jobs share: notes for the test, and words between ranks. Imports no framework."""

import os
import sys

import numpy as np

import hvd_core
from hvd_core._runtime import current_job


def note(name):
    """A file that tells the test that this process has come here."""
    with open(f"{name}.{os.getpid()}.tmp", "w") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(f"{name}.{os.getpid()}.tmp", f"{name}.{os.getpid()}")


class Steps:
    """Ends a training when the file `enough` is there, on all ranks in the same step. Notes the ranks of each world."""

    def __init__(self):
        self._noted = None

    def go_on(self):
        """Whether another step shall be made. A collective call."""
        world, size, rank = current_job.world().epoch, hvd_core.size(), hvd_core.rank()
        if self._noted != world:
            self._noted = world
            note(f"in.{size}.rank{rank}")
        enough = np.array([os.path.exists("enough")], np.int32)
        return not hvd_core.allreduce(enough, op=hvd_core.Max, name="enough")[0]


def same_everywhere(values, name):
    """Raises AssertionError unless all ranks have bit-identical values."""
    rows = hvd_core.allgather(np.asarray(values)[None], name)
    assert all(np.array_equal(rows[0], row) for row in rows), name


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def done(steps, rank, size):
    print(f"rank {rank} of {size} is done, {'some' if steps else 'no'} steps", flush=True)


def main(functions):
    functions[sys.argv[1]]()
