"""Reads along: writes all packets that pass this host's interfaces into a file, until it is ended. `packets.py FILE`."""

import socket
import sys

_ALL = 3  # ETH_P_ALL
_RCVBUFFORCE = 33  # SO_RCVBUFFORCE, beyond the limit for other users

with (
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as reader,
    open(sys.argv[1], "wb") as file,
):
    reader.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 64 << 20)
    print("ready", flush=True)
    while True:
        file.write(reader.recv(1 << 17))
        file.flush()
