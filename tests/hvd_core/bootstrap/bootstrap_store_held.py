"""A process with a store that holds Python's lock until its input ends, as a long call of an extension module would. The
secret comes as the first line of the input, the store's address goes to the output."""

import ctypes
import sys

from hvd_core._bootstrap.store import StoreServer

secret = bytes.fromhex(sys.stdin.readline())
with StoreServer("127.0.0.1", secret) as server:
    print(server.address, flush=True)
    # A call through PyDLL keeps the lock, unlike one through CDLL.
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
    print("released", flush=True)
