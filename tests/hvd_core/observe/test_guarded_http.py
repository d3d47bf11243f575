"""The server of the watcher: its cookie, and the addresses that it serves."""

import socket

import pytest

import watched_ranks as ranks
from hvd_core._observe.watch.guarded_http import GuardedServer

TOKEN = "a-token-of-the-tests_0123"
PAGES = {"/": lambda values: ("text/plain", b"shown")}


@pytest.fixture
def server():
    one = GuardedServer("127.0.0.1", 0, TOKEN, PAGES)
    yield one
    one.close()


def cookie_of(server):
    _, headers, _ = ranks.ask(f"http://127.0.0.1:{server.port}/?token={TOKEN}")
    return headers["Set-Cookie"].split(";")[0]


def test_the_cookie_is_good_for_its_port_and_is_not_the_token(server):
    cookie = cookie_of(server)
    assert TOKEN not in cookie
    name, value = cookie.split("=")
    address = f"http://127.0.0.1:{server.port}"
    assert ranks.ask(address, headers={"Cookie": cookie})[0] == 200
    assert ranks.ask(address, headers={"Cookie": f"{name}={TOKEN}"})[0] == 403
    assert ranks.ask(address, value)[0] == 403
    other = GuardedServer("127.0.0.1", 0, TOKEN, PAGES)
    try:
        assert cookie_of(other).split("=")[1] != value
    finally:
        other.close()


def test_malformed_cookies_of_other_programs_do_not_matter(server):
    cookie = cookie_of(server)
    for others in ("a[b]=1, x; {}; c", "=;;{}", "{}; =x"):
        sent = others.replace("{}", cookie)
        assert ranks.ask(f"http://127.0.0.1:{server.port}", headers={"Cookie": sent})[0] == 200, sent


def test_an_address_of_the_newer_kind_is_served():
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no ::1")
    one = GuardedServer("::1", 0, TOKEN, PAGES)
    try:
        assert ranks.ask(f"http://[::1]:{one.port}/", TOKEN)[2] == "shown"
        assert ranks.ask(f"http://[::1]:{one.port}/", TOKEN, {"Host": "evil.example"})[0] == 403
    finally:
        one.close()


def test_idle_connections_of_others_do_not_delay_one_with_the_token(server):
    """Any user of this host may open them. Some say nothing, some the beginning of a request."""
    idle = []
    try:
        for number in range(100):
            one = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            idle.append(one)
            if number % 2:
                one.sendall(b"GET / HTTP/1.0\r\n")
        address = f"http://127.0.0.1:{server.port}/"
        assert [ranks.ask(address, TOKEN)[2] for _ in range(3)] == ["shown"] * 3
    finally:
        for one in idle:
            one.close()
