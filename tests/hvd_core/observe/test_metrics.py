"""The metrics: they count what the ranks did, and the watcher serves them to programs that know the token."""

import http.client
import json
import re
import sys
import time

import pytest

import watched_ranks as ranks
from harness import finish, launch, run_on_ranks
from harness.installed import need
from hvd_core._config.settings import EngineSettings
from hvd_core._observe.watch import start
from hvd_core._observe.watch.guarded_http import GuardedServer
from hvd_core._observe.watch.watcher import token_of

need("prometheus_client")
TOKEN = "a-token-of-the-tests_0123"


def test_counts_are_those_of_the_operations():
    for text in run_on_ranks(2, ranks.counted_operations).results:
        found = ranks.samples(text)
        both = {"0": 1.0, "1": 1.0}
        assert found["horovod_rank_up",] == both
        assert found["horovod_operations_total", "allreduce"] == {"0": 13.0, "1": 13.0}
        assert found["horovod_operations_total", "allgather"] == both
        assert found["horovod_operation_bytes_total", "allgather"] == {"0": 32.0, "1": 32.0}
        unequal = {"0": 8.0, "1": 16.0}
        for rank, count in found["horovod_operation_bytes_total", "allreduce"].items():
            assert count == 3 * 40 + 8 * 40 + 8 + unequal[rank]
        assert found["horovod_batched_requests_total",] == {"0": 13.0, "1": 13.0}
        assert 5 <= found["horovod_batches_total",]["0"] <= 13
        assert found["horovod_batches_total",]["0"] == found["horovod_batches_total",]["1"]
        assert found["horovod_collectives_total", "SHM_ALLREDUCE"]["0"] >= 5
        assert found["horovod_waits_total",]["0"] >= 1
        assert found["horovod_wait_seconds_total",]["0"] > 0
        assert found["horovod_failures_total",] == both
        assert found["horovod_stall_reports_total",] == {"0": 0.0, "1": 0.0}
        assert found["horovod_pending_operations",] == {"0": 0.0, "1": 0.0}
        assert found["horovod_oldest_pending_seconds",] == {"0": 0.0, "1": 0.0}
        assert found["horovod_backend_info", "shm", "within a host"] == {None: 1.0}


@pytest.fixture
def served():
    """The address of a server with one page, which says its parameters."""
    server = GuardedServer(
        "127.0.0.1", 0, TOKEN, {"/": lambda values: ("text/plain", str(dict(values)).encode())}
    )
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def test_nobody_is_answered_without_the_token(served):
    for address, token in ((served, None), (served, "another-token-0123"), (f"{served}/?token=wrong", None)):
        status, headers, text = ranks.ask(address, token)
        assert (status, "token" in text) == (403, True)
        assert TOKEN not in text
        assert "Set-Cookie" not in headers
    assert ranks.ask(f"{served}/?token=wrong", TOKEN)[0] == 403


def test_a_program_sends_the_token_as_bearer(served):
    status, headers, text = ranks.ask(f"{served}/?a=1", TOKEN)
    assert (status, text) == (200, "{'a': '1'}")
    assert "Access-Control-Allow-Origin" not in headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert ranks.ask(f"{served}/other", TOKEN)[0] == 404


def test_a_browser_gets_a_cookie_and_an_address_without_the_token(served):
    status, headers, _ = ranks.ask(f"{served}/?token={TOKEN}")
    assert (status, headers["Location"]) == (303, "/")
    assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
    cookie = headers["Set-Cookie"].split(";")[0]
    assert ranks.ask(served, headers={"Cookie": cookie})[0] == 200
    assert ranks.ask(served, headers={"Cookie": cookie[:-1] + "!"})[0] == 403


def test_names_of_other_machines_are_refused(served):
    port = served.rpartition(":")[2]
    for host in (
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        "localhost",
        "LocalHost:8888",
        "[::1]:1",
        "127.0.0.1",
    ):
        assert ranks.ask(served, TOKEN, {"Host": host})[0] == 200, host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost:x", ":80"):
        assert ranks.ask(served, TOKEN, {"Host": host})[0] == 403, host


def test_a_token_file_with_something_else_is_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    assert token_of(str(path)) == TOKEN
    assert token_of("") != token_of("")
    for text in ("short", "with spaces in it 0123456", "a" * 300, ""):
        path.write_text(text)
        with pytest.raises(ValueError, match="HOROVOD_WATCH_TOKEN_FILE"):
            token_of(str(path))


def test_settings_that_contradict_each_other_are_named():
    assert start.reason_not_started(EngineSettings(metrics_port=9400)) == ""
    assert "HOROVOD_FLIGHT_RECORDER=0" in start.reason_not_started(
        EngineSettings(metrics_port=9400, flight_recorder=False)
    )


def test_the_first_rank_of_a_host_starts_a_watcher_that_ends_with_the_job(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    env = {
        "HOROVOD_METRICS_PORT": "auto",
        "HOROVOD_TIMELINE_LIVE": "auto",
        "HOROVOD_WATCH_TOKEN_FILE": "token",
        "HOROVOD_FLIGHT_RECORDER_DIR": "flight",
    }
    for name, command in (("alone", [sys.executable]), ("two ranks", None)):
        folder = tmp_path / name
        job = launch(2, ranks.served_until_told, folder=folder, env=env, command=command, cwd=tmp_path)
        try:
            page, address, seen = _announced(job)
            assert TOKEN not in seen
            _await(lambda folder=folder: (folder / "told.ready").exists())
            _await(lambda address=address: _served(address) == 4.0)
            found = ranks.samples(ranks.ask(address, TOKEN)[2])
            assert len(found["horovod_rank_up",]) == (1 if command else 2)
            assert "<canvas" in ranks.ask(page, TOKEN)[2]
            assert "fetch(" in ranks.ask(f"{page}page.js", TOKEN)[2]
            ranks.ask(f"{page}data", TOKEN)  # from now on it reads the events
            _await(lambda page=page: _data(page)["collectives"])
            assert _data(page)["size"] == len(_data(page)["ranks"]) == (1 if command else 2)
            assert ranks.ask(f"{page}data")[0] == 403
        finally:
            (folder / "told.asked").touch()
            finish(job, 120)
        _await(lambda address=address: not _is_open(address))
    assert not list((tmp_path / "flight").glob("*/*"))


def _announced(job):
    """(address of the page, of the metrics, all lines up to them)."""
    seen = ""
    for line in job.stdout:
        seen += line
        page = re.search(r"live timeline: (http://127\.0\.0\.1:\d+/)", seen)
        found = re.search(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", seen)
        if page and found:
            return page[1], found[1], seen
    raise AssertionError(f"no address in the output:\n{seen}")


def _served(address):
    found = ranks.samples(ranks.ask(address, TOKEN)[2])
    return found.get(("horovod_operations_total", "allreduce"), {}).get("0")


def _data(page):
    return json.loads(ranks.ask(f"{page}data", TOKEN)[2])


def _is_open(address):
    try:
        return ranks.ask(address, TOKEN)[0] == 200
    except (OSError, http.client.HTTPException):  # it may end in the middle of an answer
        return False


def _await(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.05)
