"""The search for the MPI library that mpi4py should load."""

import mmap
import os

from hvd_core._bootstrap.rendezvous import mpi4py_support


def test_a_loaded_library_is_found_whatever_bytes_its_path_has(tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"Bj\xf6rn")
    os.mkdir(folder)
    library = os.path.join(folder, b"libmpi.so.40")
    with open(library, "wb+") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE):
            assert os.fsdecode(library) in mpi4py_support._loaded()
