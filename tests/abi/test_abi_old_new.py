"""Old and new host against old and new plugin: slots, arguments, out-structs and arrays, all pairings.

The newer header is made here from the real one, by appending as a future minor would.
"""

from __future__ import annotations

import shutil

import pytest

from abi_toolchain import HERE, PACKAGE

# (what ends a struct today, what a future minor would put behind it)
APPENDED = [
    ("  hvd_rc (*mem_deregister)(hvd_comm, void* handle, hvd_error*);\n",
     "  hvd_rc (*echo)(hvd_comm, int64_t, int64_t*, hvd_error*);\n"),
    ("  uint64_t seq; /* for host->activity */\n", "  uint64_t hint;\n"),
    ("  uint64_t pack_below;\n", "  uint64_t latency_ns;\n"),
    ("  char text[992];\n", "  int64_t retry_after_ns;\n"),
    ("  const char *name, *type, *fallback, *range, *doc;\n", "  const char* since;\n"),
    ("  int32_t src_dtype, dst_dtype;\n", "  uint64_t spread;\n"),
    ("  void (*notify)(void* token);\n", "  int64_t (*now)(void);\n"),
]  # fmt: skip


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """An include folder with the headers of a would-be ABI 1.1."""
    include = tmp_path_factory.mktemp("newer") / "one_minor_on"
    shutil.copytree(PACKAGE / "include", include)
    header = include / "hvd" / "backend_abi.h"
    text = header.read_text()
    for anchor, addition in [*APPENDED, ("#define HVD_ABI_MINOR 0\n", None)]:
        assert text.count(anchor) == 1, f"the header no longer has exactly one {anchor!r}"
        text = text.replace(anchor, anchor + addition if addition else "#define HVD_ABI_MINOR 1\n")
    header.write_text(text)
    slots = include / "hvd" / "backend_slots.inc"
    rows = "HVD_SLOT(comm, echo, 1, OPTIONAL)\nHVD_SLOT(host, now, 1, OPTIONAL)\n"
    slots.write_text(slots.read_text().replace("#undef HVD_SLOT", rows + "#undef HVD_SLOT"))
    return include


@pytest.fixture(scope="module")
def hosts(toolchain, newer):
    source = HERE / "matrix_driver.cc"
    return {"old": toolchain.program(source), "new": toolchain.program(source, newer)}


@pytest.fixture(scope="module")
def plugins(toolchain, newer):
    source = HERE / "matrix_plugin.cc"
    return {
        "old": (toolchain.library(source, "matrix0"), 0),
        "new": (toolchain.library(source, "matrix1", include=newer), 1),
    }


@pytest.mark.parametrize("plugin", ["old", "new"])
@pytest.mark.parametrize("host", ["old", "new"])
def test_abi_rule_every_pairing_works(toolchain, hosts, plugins, host, plugin):
    library, minor = plugins[plugin]
    done = toolchain.run(hosts[host], library, minor)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all good\n"
