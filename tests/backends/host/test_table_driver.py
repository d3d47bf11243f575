"""What other tests rely on in the driver of tables."""

import ctypes as C

from table_driver import Backend


def entry_address(library):
    return C.cast(library.hvd_backend_entry_v1, C.c_void_p).value


def test_the_engines_library_keeps_the_engines_host(library, tmp_path):
    """Otherwise ranks that are forked from this process end in functions of Python that are gone."""
    loaded_by_an_engine = C.CDLL(str(library))
    assert entry_address(Backend(library, tmp_path).library) != entry_address(loaded_by_an_engine)
