"""Checks on several ranks whose tensors are on a made-up device; see tests/harness and device_face.py."""

import importlib

import native_program
from harness import Outcome, launch, run_on_ranks
from harness.rank_main import find_function
from harness.run import place_of

BACKENDS = native_program.ROOT / "tests/backends/host"
SOURCES = {
    "fake_sync": BACKENDS / "fake_sync" / "fake_sync.cc",
    "fake_stream": BACKENDS / "fake_stream" / "fake_stream.cc",
}
REDUCING, MOVING = [0, 4], [2, 3, 5]


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
    return run_on_ranks(ranks, _on_device, where, job, arguments, init=None, **options)


def launch_on_device(
    ranks,
    folder,
    function,
    *arguments,
    device_type="fake_stream",
    routes=(0, 2, 3, 4, 5),
    host_routes=None,
    foreign=None,
    env=None,
):
    """A launch of its own, running, whose ranks call function(face, *arguments); see harness.launch()."""
    job = _job(device_type, routes, host_routes, foreign)
    return launch(ranks, _on_device, place_of(function), job, arguments, folder=folder, env=env, init=None)


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
