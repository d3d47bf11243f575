"""The programs of the children in test_fork_server.py.

python fork_program.py WORD [ARGUMENT ...]
"""

import atexit
import os
import signal
import sys
import time


def tell(folder):
    """Prints facts of the process, and the text that it reads from an inherited file."""
    print(
        sys.argv[1:],
        "decimal" in sys.modules,
        os.getcwd(),
        os.environ.get("HVD_TEST_SPOKEN"),
        sys.stdin.read(),
    )
    print(os.read(int(folder), 100).decode(), file=sys.stderr)


def describe():
    """Prints facts of the process that an interpreter would have."""
    main = sys.modules["__main__"]
    print(sys.stdout, sys.stderr, sys.stdout.buffer, sys.stdout.line_buffering, sys.stdout.write_through)
    print(sys.orig_argv[1:], sys.argv, main.__name__, sorted(os.sched_getaffinity(0)), sys.path[0])
    print("decimal" in sys.modules)


def end(code):
    sys.exit(int(code))


def fail():
    atexit.register(lambda: print("the last error:", repr(sys.last_value), file=sys.stderr))
    raise KeyError("a mistake")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def wait(path):
    """Writes its process id into a file, waits for SIGTERM, and ends with 7."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    with open(f"{path}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.new", path)
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
