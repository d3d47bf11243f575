"""The sample backend written with backend.hpp, driven by the engine's own wrappers with threads for ranks."""

from __future__ import annotations

import re

import pytest

from abi_toolchain import HERE, PACKAGE, loopbacks


@pytest.fixture(scope="module")
def libraries(toolchain):
    return loopbacks(toolchain)


def test_loopback_through_the_table(toolchain, libraries):
    program = toolchain.program(HERE / "loopback_driver.cc")
    done = toolchain.run(program, *libraries)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all good\n"


def test_hpp_no_symbol_of_the_layer_is_exported(toolchain, libraries):
    listing = toolchain.must("nm", "-D", "--defined-only", libraries[0])
    names = [line.split()[-1] for line in listing.splitlines()]
    assert "hvd_backend_entry_v1" in names
    # Instances of standard templates may mention its types; its own functions and data stay inside.
    assert [n for n in names if re.match(r"_ZNK?3hvd", n)] == []


def test_hpp_compiles_alone_and_as_cxx17(toolchain, tmp_path):
    source = tmp_path / "minimal.cc"
    source.write_text(
        """#include <hvd/backend.hpp>
        struct Minimal : hvd::Comm<Minimal> {
          static constexpr uint64_t caps = HVD_CAP_STREAM | HVD_CAP_MEM_HOST;
          explicit Minimal(const hvd::CommInit& init) : Comm(init) {}
          hvd::Work allreduce(const hvd::Coll&) { return hvd::Work::done(); }
        };
        HVD_BACKEND(minimal, hvd::NoDevice, Minimal)
        """
    )
    library = toolchain.library(source, "minimal")
    shown = toolchain.must(toolchain.program(HERE / "load_driver.cc"), library, "minimal")
    assert shown == "minimal  MINIMAL comm\n"


def test_plugin_headers_name_no_file_of_ours():
    for header in (PACKAGE / "include" / "hvd").iterdir():
        for line in header.read_text().splitlines():
            if line.startswith('#include "'):
                assert line.startswith('#include "hvd/'), f"{header.name}: {line}"
