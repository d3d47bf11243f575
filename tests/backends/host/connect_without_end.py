"""connect_without_end.py HOST PORT: connects and closes, as often as it can, until it is killed. Says when it begins."""

import socket
import sys


def connect_and_close(place):
    print("begins", flush=True)
    while True:
        with socket.socket() as s:
            s.setblocking(False)
            s.connect_ex(place)


if __name__ == "__main__":
    connect_and_close((sys.argv[1], int(sys.argv[2])))
