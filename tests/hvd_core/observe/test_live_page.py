"""The page of the live timeline in a browser without a window: it shows a straggler and a death.

Needs Debian's chromium and playwright from PyPI. HVD_SCREENSHOTS=FOLDER keeps the pictures for the pages of docs/.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import watched_ranks as ranks
from harness import launch
from harness.installed import need

need("playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="there is no chromium here (on Debian: apt install chromium)"),
]


@pytest.fixture
def page(tmp_path):
    """A page without an address, which fails the test if it asks another server, or if its script fails."""
    from playwright.sync_api import sync_playwright

    asked, wrong = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        opened = browser.new_page(viewport={"width": 1280, "height": 860})
        opened.on("request", lambda request: asked.append(request.url))
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        yield opened
        browser.close()
    assert {re.sub(r"(http://127\.0\.0\.1:\d+)/.*", r"\1", url) for url in asked} == {asked[0].split("/?")[0]}
    assert wrong == []


def test_the_page_shows_a_straggler_and_goes_on_when_it_dies(tmp_path, page):
    job = launch(
        3, ranks.train_until_told, str(tmp_path / "place"), folder=tmp_path, stdout=subprocess.DEVNULL
    )
    live = None
    try:
        _await((tmp_path / "place.whole").exists)
        pid, _ = json.loads((tmp_path / "place.whole").read_text())
        live = subprocess.Popen(
            [sys.executable, "-m", "hvd_core._cli", "timeline", "--live", "--pid", str(pid)],
            stdout=subprocess.PIPE,
            text=True,
        )
        address = re.search(r"http://\S+", live.stdout.readline())[0]
        page.goto(address)
        _await(lambda: page.evaluate("hvd.data && hvd.data.ranks.every(r => r['steps done'] > 100)"))
        assert page.url == address.split("?")[0]
        assert page.inner_text("#state") == "runs"
        _await(lambda: page.evaluate("hvd.drawn > 200 && hvd.data.stragglers.length"))
        _await(lambda: page.evaluate("hvd.data.stragglers[0][0]") == 1)
        assert "SHM_ALLREDUCE" in page.inner_text("#collectives")
        assert "shm within a host" in page.inner_text("#backends")
        assert "layer" in page.inner_text("#tensors")
        page.select_option("#window", "0.2")
        page.wait_for_timeout(1000)
        _keep(page, tmp_path, "timeline-live.png")
        page.hover("#lanes", position={"x": 700, "y": 40})
        page.mouse.wheel(0, -300)
        assert page.inner_text("#pause") == "go on"
        page.click("#pause")

        (tmp_path / "told.die").touch()
        _await(lambda: f"Rank 1 (pid {pid}) DIED" in page.inner_text("#notes"))
        notes = page.inner_text("#notes")
        assert "not done: allreduce.never done" in notes
        _await(lambda: page.evaluate("hvd.data.ranks.every(r => r.state !== 'runs')"))
        page.select_option("#window", "5")
        page.wait_for_timeout(500)
        _keep(page, tmp_path, "timeline-live-death.png")
        assert live.poll() is None
        live.terminate()
        live.wait(60)
        _await(lambda: "does not answer" in page.inner_text("#notes"))
        assert "Rank 1" in page.inner_text("#notes")
    finally:
        if live is not None:
            live.kill()
            live.wait(60)
        job.terminate()
        job.wait(120)


def _keep(page, tmp_path, name):
    folder = Path(os.environ.get("HVD_SCREENSHOTS") or tmp_path)
    path = folder / name
    page.screenshot(path=path)
    assert path.stat().st_size > 10_000


def _await(condition):
    end = time.monotonic() + 120
    while not condition():  # in place of wait_for_function(), which the page's policy for scripts forbids
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)
