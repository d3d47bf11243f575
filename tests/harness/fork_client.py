"""Stands for a child of a fork server: takes its place below a launcher, passes signals on, ends as the child ends.

    python -I -S fork_client.py SOCKET PROGRAM ARGUMENT ...

A launcher starts it in place of `python PROGRAM ARGUMENT ...`. The child has this process's environment, folder, open
files, and namespaces of networks and mounts. If this process is killed, so is the child.
"""

import os
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import fork_server

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def open_files() -> list[int]:
    with os.scandir("/proc/self/fd") as entries:
        numbers = sorted(int(entry.name) for entry in entries)
    return [number for number in numbers if _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:  # it was the folder's own
        return False
    return True


def main() -> None:
    files = open_files()
    namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in fork_server.NAMESPACES]
    umask = os.umask(0)
    os.umask(umask)
    program = {
        "arguments": sys.argv[2:],
        "environment": {**os.environ, fork_server.ADDRESS: sys.argv[1]},
        "folder": os.getcwd(),
        "umask": umask,
        "files": files,
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(sys.argv[1])
    fork_server.send(connection, ("run", program), [*files, *namespaces])
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: fork_server.send(connection, number))
    answer = fork_server.receive(connection)
    if answer is None:
        sys.exit("the fork server has ended")
    code = answer[0]
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
