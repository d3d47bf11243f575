"""Small programs on several ranks whose tensors are on a made-up device; see jobs.py and device_face.py.

At hand beside what jobs.py gives: ``face`` (the verbs), ``device``, ``engine`` (the engine itself), ``put(array)``.
"""

import importlib
import json
from pathlib import Path

from harness.checks import place_of
from harness.rank_main import find_function

import jobs
import native_program
from harness import Outcome, run_on_ranks

BACKENDS = native_program.ROOT / "tests" / "backends"
SOURCES = {
    "fake_sync": BACKENDS / "fake_sync" / "fake_sync.cc",
    "fake_stream": BACKENDS / "fake_stream" / "fake_stream.cc",
}
REDUCING, MOVING = [0, 4], [2, 3, 5]

BEFORE = """
import json, sys
sys.path.insert(0, {folder!r})
import device_face
job = json.loads({job!r})
name, library = job["type"], job["library"]
device_face.configure(
    [{{"type": name, "table": (name, library), "routes": {{
        **{{c: (name, library) for c in job["routes"]}},
        **{{int(c): tuple(pair) for c, pair in job["foreign"].items()}},
    }}}}],
    {{int(c): tuple(pair) for c, pair in job["host_routes"].items()}},
)
device = device_face.Device(name, library, name == "fake_stream")
face = device_face.DeviceFace(device)
"""
AFTER = """
engine = runtime.engine()
put = face.put
"""


def library(device_type: str) -> str:
    return str(native_program.backend(SOURCES[device_type]))


def _job(device_type, routes, host_routes, foreign) -> dict:
    """What the ranks have to know about their device. ``foreign``: (name, library) by collective, of backends that open
    no devices."""
    return {
        "type": device_type,
        "library": library(device_type),
        "routes": list(routes),
        "host_routes": host_routes or {},
        "foreign": foreign or {},
    }


def run_on_device(
    ranks,
    function,
    *arguments,
    device_type="fake_stream",
    routes=(0, 2, 3, 4, 5),
    host_routes=None,
    foreign=None,
    **options,
) -> Outcome:
    """function(face, *arguments) on living ranks, after init(); ``face`` has the verbs, `.device` and `.put(array)`.

    The options are those of run_on_ranks().
    """
    job = _job(device_type, routes, host_routes, foreign)
    where = place_of(function)
    return run_on_ranks(ranks, _on_device, where, job, arguments, init=None, kind="device", **options)


def _on_device(where, job, arguments):
    import hvd_core as hvd

    device_face = importlib.import_module("device_face")
    name, table = job["type"], (job["type"], job["library"])
    plain = device_face._core.Engine
    routes = {**dict.fromkeys(job["routes"], table), **job["foreign"]}
    device_face.configure([{"type": name, "table": table, "routes": routes}], job["host_routes"])
    try:
        device = device_face.Device(name, job["library"], name == "fake_stream")
        hvd.init()
        return find_function(*where)(device_face.DeviceFace(device), *arguments)
    finally:
        device_face._core.Engine = plain


def start(
    ranks,
    folder,
    text,
    device_type="fake_stream",
    routes=(0, 2, 3, 4, 5),
    host_routes=None,
    env=None,
    foreign=None,
):
    """The launcher, running the program. ``foreign``: (name, library) by collective, of backends that open no devices."""
    job = _job(device_type, routes, host_routes, foreign)
    path = jobs.write_program(folder, text)
    before = BEFORE.format(folder=str(Path(__file__).parent), job=json.dumps(job))
    body = path.read_text().replace(jobs.PRELUDE, jobs.PRELUDE + AFTER)
    path.write_text(before + body)
    return jobs.start(ranks, path, env)


def run(ranks, folder, text, *args, timeout=150, code=0, **options) -> str:
    """Run the program to its end; what it printed."""
    return jobs.finish(start(ranks, folder, text, *args, **options), timeout, code)
