"""A launcher's store as a process of its own: serves on the address given until its input ends. The secret
comes as the first line of the input, the store's address goes to the output."""

import sys

from hvd_core._bootstrap.store import StoreServer

secret = bytes.fromhex(sys.stdin.readline())
with StoreServer(sys.argv[1], secret) as server:
    print(server.address, flush=True)
    sys.stdin.read()
