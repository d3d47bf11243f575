"""Prints the error of loading the compiled part of hvd_core, for test_import_from_checkout.py.

    python -S load_compiled_part.py CHECKOUT FOLDER

The checkout comes first on the path of modules; FOLDER, where another hvd_core is installed, comes last.
"""

import sys

sys.path[:] = [sys.argv[1], *sys.path[1:], sys.argv[2]]

from hvd_core._base import native  # noqa: E402

try:
    native.load()
except ImportError as error:
    print(error.name, error)
