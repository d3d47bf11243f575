"""Runs the discovery script of an elastic job for the driver, and ends it if the driver ends, even by SIGKILL.

Started by elastic_discovery.py with the plain interpreter. For each byte on standard input the script runs once, and its
result is written to standard output as a line of JSON: {"status", "out", "err"} or {"problem"}. A signal of the kernel to
the script's shell alone (as in supervisor.execute()) would leave the commands that the shell runs. Not to be imported; it
imports only fast modules of the standard library.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False  # typing is slow
if TYPE_CHECKING:
    from typing import Any

LONGEST_ANSWER = 1 << 20


class DriverGone(Exception):
    """The driver has closed its end, or has ended."""


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the script and all processes of its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    process.wait()


def look(selector: selectors.BaseSelector, seconds: float | None) -> list[str]:
    """The descriptors that can be read. Raises DriverGone."""
    ready = [key.data for key, _ in selector.select(seconds)]
    if "driver" in ready or ("asked" in ready and not os.read(0, 1)):
        raise DriverGone
    return ready


def run(script: str, limit_s: float, driver: int) -> dict[str, object]:
    """The result of one run. A process that the script leaves behind may hold its output open."""
    with selectors.DefaultSelector() as selector:
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            end = os.pidfd_open(process.pid)
        except OSError as error:
            return {"problem": f"the host discovery script cannot be started: {error.strerror}"}
        texts = {"out": bytearray(), "err": bytearray()}
        assert process.stdout is not None and process.stderr is not None
        streams = {"out": process.stdout, "err": process.stderr}
        try:
            for descriptor, name in ((0, "asked"), (driver, "driver"), (end, "end")):
                if descriptor >= 0:
                    selector.register(descriptor, selectors.EVENT_READ, name)
            for name, stream in streams.items():
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
            until = time.monotonic() + limit_s
            ended = False
            while not ended:
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return {"problem": f"the host discovery script did not end within {limit_s:g} s"}
                ended = "end" in look(selector, left_s)
                for name, stream in streams.items():
                    if not read(stream, texts[name], selector):
                        return {"problem": "the host discovery script printed more than a megabyte"}
            done: dict[str, object] = {"status": process.wait()}
            return done | {name: text.decode(errors="replace") for name, text in texts.items()}
        finally:
            if process.poll() is None:
                kill(process)
            os.close(end)
            for stream in streams.values():
                stream.close()


def read(stream: Any, text: bytearray, selector: selectors.BaseSelector) -> bool:
    """Reads what is there. Returns False if that is too much."""
    while not stream.closed:
        data = stream.read(1 << 16)
        if data is None:
            break
        text += data
        if len(text) > LONGEST_ANSWER:
            return False
        if not data:
            selector.unregister(stream)
            stream.close()
    return True


def main() -> None:
    """The program."""
    driver_pid, limit_s, script = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the driver decides; a script does not inherit a handler
    driver = -1
    try:
        driver = os.pidfd_open(driver_pid)
    except OSError:
        pass  # the end of standard input shows it as well
    if os.getppid() != driver_pid:
        return
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ, "asked")
        if driver >= 0:
            selector.register(driver, selectors.EVENT_READ, "driver")
        while True:
            look(selector, None)
            line = json.dumps(run(script, limit_s, driver)).encode() + b"\n"
            while line:
                line = line[os.write(1, line) :]


if __name__ == "__main__":
    try:
        main()
    except (DriverGone, BrokenPipeError):
        pass
