"""Programs whose output is looked at (test_runner_output.py): one function each, named on the command line."""

import os
import sys
import time


def _write(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def _wait(name):
    while not os.path.exists(name):
        time.sleep(0.02)


def returns_and_line_ends():
    _write("\r 10%\r 20%\r\n\n30%\n")


def returns_apart_from_line_ends():
    for part in ("one\r", "\ntwo\r", "\r\n", "three\n"):
        _write(part)
        time.sleep(0.1)


def part_of_a_line():
    _write("wait")
    _wait("seen")
    _write(" done\nlast")


def part_of_a_line_beside_another_rank():
    if os.environ["HOROVOD_RANK"] == "0":
        _write("epoch 1 ...")
        _wait("other")
        print(" ok")
    else:
        _wait("half")
        print("hello")


def parts_of_characters():
    text = "grüße 🎉 日本".encode()
    for i in range(len(text)):
        os.write(1, text[i : i + 1])
        time.sleep(0.03)
    time.sleep(0.4)
    os.write(1, b"\n\xff\xfe bad\n")


def a_long_line_of_all_bytes():
    data = bytes(b for b in range(256) if b not in (10, 13)) * 4000
    while data:
        data = data[os.write(1, data) :]
    os.write(1, b"\n")


def a_line_and_a_part_of_an_error():
    rank = os.environ["HOROVOD_RANK"]
    sys.stdout.write(f"out {rank}\r\n")
    sys.stderr.write(f"err {rank}")


def a_line_beside_a_part_of_an_error():
    sys.stderr.write("50%")
    sys.stderr.flush()
    _wait("part")
    _write("message\n")
    _wait("line")
    sys.stderr.write("\n")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
