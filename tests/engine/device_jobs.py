"""Small programs on several ranks whose tensors are on a made-up device; see jobs.py and device_face.py.

At hand beside what jobs.py gives: ``face`` (the verbs), ``device``, ``engine`` (the engine itself), ``put(array)``.
"""

import json
from pathlib import Path

import jobs
import native_program

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
    job = {
        "type": device_type,
        "library": library(device_type),
        "routes": list(routes),
        "host_routes": host_routes or {},
        "foreign": foreign or {},
    }
    path = jobs.write_program(folder, text)
    before = BEFORE.format(folder=str(Path(__file__).parent), job=json.dumps(job))
    body = path.read_text().replace(jobs.PRELUDE, jobs.PRELUDE + AFTER)
    path.write_text(before + body)
    return jobs.start(ranks, path, env)


def run(ranks, folder, text, *args, timeout=150, code=0, **options) -> str:
    """Run the program to its end; what it printed."""
    return jobs.finish(start(ranks, folder, text, *args, **options), timeout, code)
