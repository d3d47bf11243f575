"""A rank that writes its lines in pieces: mpirun reads a part of a line at once, or parts of several lines."""

import os
import time


def main():
    rank = os.environ.get("PMI_RANK") or os.environ["PMIX_RANK"]
    for number in range(40):
        for piece in (f"{rank}:{number}:".encode(), b"[1,", b"x" * (number * 300), b"\xc3", b"\xa4\n\n"):
            os.write(1, piece)
            time.sleep(0.001)
        os.write(2, b"error ")
        os.write(2, rank.encode() + b"\n")
    os.write(1, b"[1")


if __name__ == "__main__":
    main()
