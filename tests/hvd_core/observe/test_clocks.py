"""Clocks of hosts are compared at init(). A host with another clock is a process in a time namespace of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_core._base.auth import new_secret
from hvd_core._bootstrap.store import StoreServer

AHEAD = 1000  # seconds
UNSHARE = ["unshare", "--time", "--monotonic", str(AHEAD)]


def other_clock_works():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=60).returncode == 0


def test_the_offset_of_another_host_is_within_its_error():
    if not other_clock_works():
        pytest.skip("no time namespace can be made here (unshare --time, as root)")
    secret = new_secret()
    server, processes = StoreServer("127.0.0.1", secret), []
    try:
        # Ranks 0 and 1 share a host, ranks 2 and 3 another one.
        program = [sys.executable, str(Path(__file__).with_name("clock_rank.py"))]
        processes = [
            subprocess.Popen(
                [
                    *(UNSHARE if rank >= 2 else []),
                    *program,
                    str(rank),
                    server.address,
                    secret.hex(),
                    "[0, 0, 1, 1]",
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(4)
        ]
        answers = [json.loads(process.communicate(timeout=90)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
        server.close()
    assert [measured for measured, _ in answers[:2]] == [[0, 0], [0, 0]]
    assert answers[2][0] == answers[3][0]
    (offset, error), by_wall = answers[2]
    assert abs(offset + AHEAD * 10**9) <= error
    # Both hosts have one wall clock here. It is read in two steps, between which a process may wait for its turn.
    assert abs(by_wall + AHEAD * 10**9) < 10 * 10**9
