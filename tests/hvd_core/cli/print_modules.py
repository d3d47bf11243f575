"""Runs the command `hvd` with the arguments, and prints the modules that are loaded at the end."""

import atexit
import sys


def run():
    atexit.register(lambda: print("MODULES", *sys.modules))
    from hvd_core._cli import main

    main(sys.argv[1:])


if __name__ == "__main__":
    run()
