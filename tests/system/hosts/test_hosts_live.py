"""One page of the live timeline shows the ranks of all hosts of a job."""

import json
import sys
import time

import pytest

from host_words import rank_words

pytestmark = [pytest.mark.netns, pytest.mark.timeout(400)]
PORT = 8123
TOKEN = "a-token-of-the-tests_0123"
# The page is on loopback of its host. This program asks it there, in the host's namespace.
ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


def test_a_page_shows_both_hosts_their_straggler_and_a_stall(cluster):
    made = cluster(1, 2)
    (made.folder / "token").write_text(TOKEN)
    # Each host is a namespace, with ports of its own.
    env = {"HOROVOD_TIMELINE_LIVE": str(PORT), "HOROVOD_WATCH_TOKEN_FILE": str(made.folder / "token")}
    process = made.start("-np", 3, *rank_words("late_steps_and_a_stall"), env=env)
    last = 0

    def shown(condition):
        nonlocal last
        end = time.monotonic() + 150
        while True:
            words = (sys.executable, "-c", ASK, f"http://127.0.0.1:{PORT}/data?after={last}", TOKEN)
            done = made.network[0].run(*words, check=False)
            seen = json.loads(done.stdout or "{}")
            last = seen.get("last", last)
            if seen and condition(seen):
                return seen
            assert time.monotonic() < end, (seen, done.stderr)
            assert process.poll() is None, process.communicate()
            time.sleep(0.4)

    seen = shown(lambda seen: [rank["rank"] for rank in seen["ranks"]] == [0, 1, 2])
    assert seen["other hosts"] == "" and seen["size"] == 3
    rows = set()

    def drawn(seen):
        rows.update((rank, row) for rank, row, *_ in seen["spans"])
        return {(rank, row) for rank in range(3) for row in (1, 2)} <= rows

    shown(drawn)
    # Rank 2, on the second host, is the last one of all three.
    seen = shown(lambda seen: seen["stragglers"] and seen["stragglers"][0][1] >= 5)
    assert seen["stragglers"][0][0] == 2 and seen["stragglers"][0][2] > 0
    tensors = {name: count for name, count, *_ in shown(lambda seen: seen["tensors"])["tensors"]}
    assert "allreduce.late" in tensors
    (made.folder / "stall").touch()
    stalled = shown(lambda seen: [s for s in seen["stalls"] if s["name"] == "allreduce.stalled"])["stalls"]
    (stall,) = [s for s in stalled if s["name"] == "allreduce.stalled"]
    assert (stall["submitted"], stall["missing"]) == ([0], [1, 2])
    (made.folder / "end").touch()
    _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert b"Traceback" not in err
