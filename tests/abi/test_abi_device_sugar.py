"""hvd::Device, and the compile errors for methods with a wrong signature."""

import re
import subprocess

import pytest

from abi_toolchain import HERE, PACKAGE

DEVICE = """#include <hvd/backend.hpp>
struct Mine : hvd::Device<Mine> {
  static constexpr const char* device_type = "mine";
  using Stream = void*;
  using Event = void*;
  static int32_t count() { return 1; }
  explicit Mine(const hvd::DeviceInit& init) : Device(init) {}
  void copy(Stream, hvd_buf, hvd_buf, uint64_t) {}
  %s
};
HVD_BACKEND(mine, Mine, hvd::NoComm)
"""
COMM = """#include <hvd/backend.hpp>
struct Mine : hvd::Comm<Mine> {
  explicit Mine(const hvd::CommInit& init) : Comm(init) {}
  static constexpr uint64_t caps = %s;
  %s
};
HVD_BACKEND(mine, hvd::NoDevice, Mine)
"""
STREAM, REQUEST = "HVD_CAP_STREAM | HVD_CAP_MEM_HOST", "HVD_CAP_REQUEST | HVD_CAP_MEM_HOST"


def test_tables_of_devices(toolchain):
    done = toolchain.run(toolchain.program(HERE / "device_sugar_driver.cc"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all good\n"


def test_a_backend_of_a_device_alone_loads(toolchain, tmp_path):
    source = tmp_path / "mine.cc"
    source.write_text(DEVICE % "")
    library = toolchain.library(source, "mine")
    shown = toolchain.must(toolchain.program(HERE / "load_driver.cc"), library, "mine")
    assert shown == "mine  MINE device\n"


# Mistakes of an author, and the words in which the compiler is to tell each of them.
MISTAKES = [
    (
        DEVICE % "bool event_query(int) { return true; }",
        "'event_query' that cannot be called as: bool event_query(Event)",
    ),
    (
        DEVICE % "void stream_query(Stream) {}",
        "'stream_query' that cannot be called as: bool stream_query(Stream)",
    ),
    (
        DEVICE % "Stream stream_create(int32_t) { return nullptr; }",
        "stream_create, stream_sync and stream_destroy: all of them or none",
    ),
    (
        DEVICE % "void* mem_alloc(int32_t, uint64_t) { return nullptr; }",
        "mem_alloc and mem_free: both or none",
    ),
    (
        (DEVICE % "").replace("using Stream = void*;", ""),
        "a device class needs `using Stream = ...`, the runtime's stream",
    ),
    (
        COMM % (REQUEST, "void allreduce(const hvd::Coll&) {}"),
        "with HVD_CAP_REQUEST, allreduce must return hvd::Work",
    ),
    (
        COMM % (STREAM, "void allgather(hvd::Coll&) {}"),
        "'allgather' that cannot be called as: hvd::Work allgather(const hvd::Coll&)",
    ),
    (COMM % (STREAM, "void group_begin() {}"), "group_begin and group_end: both or none"),
    (COMM % ("HVD_CAP_STREAM | HVD_CAP_REQUEST | HVD_CAP_MEM_HOST", ""), "one of HVD_CAP_STREAM and"),
    (COMM % ("HVD_CAP_STREAM | HVD_CAP_MEM_DEVICE", ""), "HVD_CAP_MEM_DEVICE needs a device class, or"),
]


@pytest.fixture(scope="module")
def errors(toolchain, tmp_path_factory):
    """The compiler's words about all mistakes, cut at each error: what led to it is before it or behind it.

    It is asked once, as the header costs it more than a mistake. Each mistake is in a namespace of its own, and so in
    all that led to an error; an entry point cannot be in one, so each has another name.
    """
    text = "#include <hvd/backend.hpp>\n"
    for number, (source, _) in enumerate(MISTAKES):
        alone = source.replace("#include <hvd/backend.hpp>\n", "")
        text += f"#undef hvd_backend_entry_v1\n#define hvd_backend_entry_v1 entry_{number}\n"
        text += f"namespace mistake_{number} {{\n{alone}}}\n"
    path = tmp_path_factory.mktemp("mistakes") / "mine.cc"
    path.write_text(text)
    command = [toolchain.cxx, "-std=c++17", "-fsyntax-only", f"-I{PACKAGE / 'include'}", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"LC_ALL": "C"})
    assert done.returncode != 0
    return re.split(r"^(.*error: .*)$", done.stderr, flags=re.MULTILINE)


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda number: MISTAKES[number][1])
def test_what_is_not_quite_right_is_said_at_compile_time(errors, number):
    said = MISTAKES[number][1]
    places = [place for place in range(1, len(errors), 2) if said in errors[place]]
    assert len(places) == 1, "".join(errors)
    (place,) = places
    led = errors[place - 1] + errors[place + 1]
    assert "static assertion failed" in errors[place] and f"mistake_{number}::Mine" in led, "".join(errors)
