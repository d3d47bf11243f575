"""When the process of a watcher ends: with its job, and when the rank that has started it begins another job."""

import http.client
import json
import os
import re
import subprocess
import sys
import time

import pytest

import watched_ranks as ranks
from harness import finish, launch
from hvd_core._observe.watch.start import CONFIG


@pytest.mark.parametrize("found", ["no file", "a file of another version"])
def test_a_watcher_without_a_ring_ends_when_its_rank_goes_on_without_it(tmp_path, found):
    ring = tmp_path / "rank-0.flight"
    if found != "no file":
        ring.write_bytes(b"hvdring1" + bytes(500))
    ours, theirs = os.pipe()
    config = {
        "place": {"segment_fd": -1, "slots": 0, "pid": os.getpid(), "file": str(ring)},
        "owner": ours,
        "page_port": -1,
        "metrics_port": 0,
        "metrics_address": "",
        "token_file": "",
    }
    watcher = subprocess.Popen(
        [sys.executable, "-m", "hvd_core._observe.watch.watcher"],
        env={**os.environ, CONFIG: json.dumps(config)},
        pass_fds=[ours],
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(ours)
    try:
        said = watcher.stderr.readline()
        assert "live timeline: http://127.0.0.1:" in said
        assert watcher.poll() is None
        os.close(theirs)
        assert watcher.wait(120) == 0
    finally:
        watcher.kill()
        watcher.communicate()


def test_the_watcher_of_an_aborted_job_gives_way_to_that_of_the_next(tmp_path):
    env = {
        "HOROVOD_TIMELINE_LIVE": "auto",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2",
    }
    job = launch(2, ranks.aborted_and_begun_again, folder=tmp_path, env=env)
    try:
        pages, seen = [], ""
        for line in job.stdout:
            seen += line
            pages = re.findall(r"live timeline: (http://\S+/)\?token", seen)
            if len(pages) == 2:
                break
        assert len(pages) == 2, seen
        # Both ranks still run.
        end = time.monotonic() + 120
        while _answers(pages[0]):
            assert time.monotonic() < end, "the watcher of the first job goes on"
            time.sleep(0.05)
        assert _answers(pages[1])
    finally:
        (tmp_path / "told.asked").touch()
        finish(job, 120)


def _answers(page):
    """Whether a watcher refuses the question, which lacks its token."""
    try:
        return ranks.ask(page)[0] == 403
    except (OSError, http.client.HTTPException):  # it may end in the middle of an answer
        return False
