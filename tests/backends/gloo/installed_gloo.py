"""Two communicators of an installed gloo backend in one process; then prints where the libraries came from.

    python installed_gloo.py SITE FOLDER...

The backend is the one in SITE; the test helpers are in the other folders.
"""

import re
import sys
import tempfile
from pathlib import Path


def main():
    sys.path[:0] = sys.argv[1:]
    sys.meta_path[:] = [f for f in sys.meta_path if "gloo" not in type(f).__module__]  # an editable install's
    import hvd_backend_gloo

    described = hvd_backend_gloo.describe()
    assert str(described.library).startswith(sys.argv[1]), described.library
    assert described.probe().detail == "Gloo over TCP", described.probe()
    with tempfile.TemporaryDirectory() as store:
        reduce_in_threads(described.library, Path(store))
    maps = Path("/proc/self/maps").read_text()
    used = set(re.findall(r"/\S+/lib(?:gloo|hiredis|ibverbs|nl)[-.]\S+", maps))
    print(*sorted(used), sep="\n")


def reduce_in_threads(library, store):
    import numpy as np

    from abi_ctypes import ALLREDUCE
    from ranks import in_threads

    def body(comm):
        a = np.full(1000, comm.rank + 1.0, np.float32)
        comm.run(ALLREDUCE, [a], [a])
        assert (a == 3).all()

    in_threads(library, store, 2, body)


if __name__ == "__main__":
    main()
