"""Phases that a backend reports appear in the timeline, inside of the operation."""

import json
from pathlib import Path

import observed_ranks as ranks
import timeline_rules
from compiled import ROOT, compiled, cxx
from harness import run_on_ranks


def test_phases_of_a_backend_are_nested_activities(tmp_path):
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    source = Path(__file__).with_name("phased_backend.cc")
    library = compiled("libphased.so", [cxx(), *flags], [source], [ROOT / "hvd_core" / "include"], ["-ldl"])
    path = tmp_path / "t.json"
    env = {
        "HOROVOD_BACKEND": "phased",
        "HOROVOD_BACKEND_PATH_PHASED": str(library),
        "PHASED_LIBRARY": str(ROOT / "hvd_core" / "lib" / "libhvd_backend_shm.so"),
        "HOROVOD_TIMELINE": str(path),
    }
    run_on_ranks(2, ranks.ends_in_order, env=env)
    events = json.loads(path.read_text())
    assert timeline_rules.faults(events) == []
    spans = [(e["ph"], e.get("name")) for e in events if e["ph"] in "BE" and e["pid"] == 1]
    at = spans.index(("B", "PHASED_ALLREDUCE"))
    assert spans[at + 1 : at + 3] == [("B", "PHASED_START"), ("E", None)]
