"""Prints the library that the backend mpi of this environment loads. The argument is a path of a library, or empty."""

import os
import sys


def main():
    if sys.argv[1]:
        os.environ["HOROVOD_BACKEND_MPI_LIBRARY"] = sys.argv[1]
    from hvd_core.backends import _discovery
    from hvd_core.backends._discovery.installed_backend import load_backend

    print(load_backend(_discovery.lookup("mpi", ""), True, "tcp")["vendor_lib"].split(",")[0])


if __name__ == "__main__":
    main()
