#!/usr/bin/env python3
"""What a timeline costs: training steps without one, with one of rank 0, with one of every rank, and with a live page.

    python benchmarks/timeline_overhead.py [--runs 15] [--models cnn] [--json result.json]

All ways are in the same processes and take turns of less than half a second, in an order that changes from run to run. A
turn is the median of its steps, and ratios to "off" are formed within a run. Behind a ratio stands how far the median of
so many ratios may be off (the notch of a box plot, 95 %).

Models: "cnn" is a real small network; "resnet50" has the shapes of a ResNet-50's 161 gradients and next to no
computation; "tiny1000" submits 1,000 tensors of one element. "processor" is the ratio of the processor time that a step
takes, which others on the machine disturb less. With more ranks than free cores the thread that writes the file takes its
time from the ranks. "live": this program asks the watcher as a page does, four times a second. "processor" leaves the
watcher out; its share of a core stands below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.alternatives import horovodrun, need
from harness.build import BENCHMARKS
from hvd_core.bench import _report

WAYS = ("off", "file", "all ranks", "live")
_PAGE_S = 0.25


class Page:
    """Asks the watcher of the job as a browser does, while the file `folder`/page is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._token = secrets.token_urlsafe(24)
        (folder / "token").write_text(self._token)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._spent = self._asked = 0.0
        self._last = 0
        threading.Thread(target=self._run, daemon=True).start()

    def variables(self) -> dict[str, str]:
        """For the job."""
        return {
            "HOROVOD_TIMELINE_LIVE": str(self._port),
            "HOROVOD_WATCH_TOKEN_FILE": str(self._folder / "token"),
        }

    def share(self) -> float:
        """The watcher's processor time while it was asked, of a core."""
        return self._spent / max(1e-9, self._asked)

    def _run(self) -> None:
        while True:
            if (self._folder / "page").exists():
                try:
                    self._be_open()
                except (OSError, ValueError):
                    pass  # the job has ended
            time.sleep(0.01)

    def _be_open(self) -> None:
        """Ask until the file is gone. With the second answer the watcher has read what there was before the first."""
        for _ in range(2):
            self._ask()
            time.sleep(_PAGE_S)
        began, spent = time.monotonic(), self._watchers_time()
        (self._folder / "page.seen").touch()
        next_at = began
        while (self._folder / "page").exists():
            if time.monotonic() >= next_at:
                self._ask()
                next_at += _PAGE_S
            time.sleep(0.005)
        self._asked += time.monotonic() - began
        self._spent += self._watchers_time() - spent
        self._get("closed?page=benchmark")
        time.sleep(_PAGE_S)  # the watcher notices it after its pause
        (self._folder / "page.gone").touch()

    def _ask(self) -> None:
        self._last = json.loads(self._get(f"data?page=benchmark&after={self._last}"))["last"]

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/{path}")
        request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()

    def _watchers_time(self) -> float:
        mark = str(self._folder / "token").encode()
        for found in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if b"hvd_core._observe.watch.watcher" not in found.read_bytes():
                    continue
                if mark not in (found.parent / "environ").read_bytes():
                    continue
                # Of all threads, also of those that have ended.
                fields = (found.parent / "stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except OSError:
                continue  # it has ended, or is another user's
        return 0.0


def with_spread(values: list[float], others: list[float]) -> str:
    """The median of the ratios, and how far it may be off."""
    ratios = [a / b for a, b in zip(values, others)]
    if len(ratios) < 4:
        return f"{statistics.median(ratios):.3f}"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ±{1.57 * (high - low) / len(ratios) ** 0.5:.3f}"


def tables(result: dict) -> str:
    """The result as text."""
    rows = []
    for model, ways in result["steps"].items():
        wall = {way: [run[0] for run in runs] for way, runs in ways.items()}
        spent = {way: [run[1] for run in runs] for way, runs in ways.items()}
        row = [model, _report.number(statistics.median(wall["off"]) * 1e3)]
        for way in WAYS[1:]:
            row.append(with_spread(wall[way], wall["off"]))
        for way in WAYS[1:]:
            row.append(with_spread(spent[way], spent["off"]))
        rows.append(row)
    header = ["model", "off, ms", *WAYS[1:], *(f"{way}, processor" for way in WAYS[1:])]
    watcher = f"The watcher took {result['watcher']:.1%} of a core while it was asked."
    return f"{_report.table(header, rows)}\n{watcher}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--runs", type=int, default=15, help="turns per way (default 15)")
    parser.add_argument("--models", default="cnn,resnet50,tiny1000", help="default all: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    need("torch", "pip install torch")
    need("horovod.torch", "install this project into the environment (make train does)")
    with tempfile.TemporaryDirectory() as folder:
        worker = [sys.executable, str(BENCHMARKS / "workers" / "timeline.py"), folder]
        what = [f"--runs={options.runs}", f"--models={options.models}"]
        paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
        env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, paths)))
        env.pop("HOROVOD_TIMELINE", None)
        page = Page(Path(folder))
        env |= page.variables()
        subprocess.run([*horovodrun(options.np), *worker, *what], env=env, check=True)
        result = {"machine": _report.machine(), **json.loads((Path(folder) / "result.json").read_text())}
        result["watcher"] = page.share()
    print(tables(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
