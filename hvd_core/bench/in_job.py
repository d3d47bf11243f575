"""`hvd bench` under a launcher: all alternatives in the ranks of one job, which take turns. Every rank runs the
same loop."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable

import numpy as np

import hvd_core as hvd
from hvd_core.bench.alternative import Alternative, Place
from hvd_core.bench.conductor import Unavailable
from hvd_core.bench.measuring import answer
from hvd_core.bench.sweep import Teams


def _gathered(text: str) -> list[str]:
    """The texts of all ranks."""
    mine = np.frombuffer(text.encode() + b"\0", dtype=np.uint8)
    return bytes(hvd.allgather(mine)).decode().split("\0")[:-1]


def _from_root(data: bytes) -> bytes:
    return bytes.fromhex(_gathered(data.hex())[0])


class InJob(Teams):
    """The alternatives of this job. ``make``: how to load each, by its name. Call after hvd_core.init()."""

    def __init__(self, make: dict[str, Callable[[], type[Alternative]]], device: str) -> None:
        self.failed: dict[str, str] = {}
        self.titles: dict[str, str] = {}
        self._made: dict[str, Alternative] = {}
        place = Place(hvd.rank(), hvd.size(), hvd.local_rank(), device, None, _from_root)
        for name, load in make.items():
            try:
                kind = load()
                kind.check(device)
                why = ""
            except Exception as error:  # a rank that leaves here would leave the others alone
                kind, why = None, str(error) or repr(error)
            if self._all_can(name, why):
                try:
                    self._made[name], why = kind(place), ""
                except Exception as error:
                    why = str(error) or repr(error)
                if self._all_can(name, why):
                    self.titles[name] = self._made[name].title

    def _all_can(self, name: str, why: str) -> bool:
        reasons = [f"rank {rank}: {text}" for rank, text in enumerate(_gathered(why)) if text]
        if reasons:
            self.drop(name, reasons[0])
        return not reasons

    def names(self) -> list[str]:
        return list(self._made)

    def ask(self, name: str, command: dict) -> list[dict]:
        try:
            mine = answer(self._made[name], command)
        except Exception:
            mine = {"error": traceback.format_exc()}
        answers = [json.loads(text) for text in _gathered(json.dumps(mine))]
        for rank, found in enumerate(answers):
            if "error" in found:
                raise Unavailable(f"{name}, rank {rank}: {found['error']}")
        return answers

    def drop(self, name: str, why: str) -> None:
        self.failed[name] = why
        self._made.pop(name, None)
        if hvd.rank() == 0:
            print(f"without {name}: {why}", file=sys.stderr)
