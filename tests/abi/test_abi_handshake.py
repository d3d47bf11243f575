"""Tables and libraries with one fault each: refused with the reason, never a crash."""

from __future__ import annotations

import pytest

from abi_toolchain import HERE, loaded_loopback
from hvd_core.backends import BackendLoadError, installed

ACCEPTED = {"good", "long_with_dirty_tails", "newer_minor", "only_device", "only_comm"}

# A part of each message; the golden test below has the whole messages.
REFUSED = {
    "short_backend": "its backend table says it has 80 bytes; ABI 1.0 has 88 and a later one more",
    "short_comm": "its comm table says it has 168 bytes; ABI 1.0 has 176",
    "short_device": "its device table says it has 200 bytes; ABI 1.0 has 208",
    "only_a_header": "its backend table says it has 16 bytes",
    "size_zero": "its backend table says it has 0 bytes",
    "size_absurd": "its backend table says it has 2147483647 bytes",
    "comm_size_absurd": "its comm table says it has 4294967295 bytes",
    "major_2": "its backend table is of backend ABI 2.0; this hvd-core offers 1.1",
    "comm_major_0": "its comm table is of backend ABI 0.0",
    "same_byte_everywhere": "its backend table says it has 2880154539 bytes",
    "random_bytes": "its backend table says it has",
    "misaligned": "its backend table is at an address that is no multiple of 8",
    "null_table": "its entry function reported success but gave no table",
    "null_entry": "its entry function is NULL",
    "throws": "its entry function threw a C++ exception: oops",
    "refuses": "UNAVAILABLE forged: load: no ? luck (UNAVAILABLE, vendor code 17)",
    "unknown_code": "INTERNAL forged: load: no ? luck (INTERNAL, vendor code 17; the call answered 99)",
    "inprogress": "INTERNAL forged: load: no ? luck (INTERNAL, vendor code 17; the call answered 1)",
    "null_name": "its table has a NULL name",
    "empty_name": "its name is empty",
    "bad_name": "its name is not 1 to 32 characters of a-z, 0-9, '_', '-'",
    "endless_name": "its name is not 1 to 32 characters",
    "other_name": "the library says that it is backend 'gold'",
    "null_tag": "its table has no tag",
    "no_tables": "it has neither a device table nor a communicator table",
    "missing_create": "its comm table lacks the required slot(s): create",
    "missing_two": "its comm table lacks the required slot(s): query, collective",
    "missing_open": "its device table lacks the required slot(s): open",
    "half_req": "has req_test without req_wait; the slots of group 'req' come all together",
    "half_group": "has group_begin without group_end; the slots of group 'group' come all together",
    "half_mem": "has mem_alloc without mem_free; the slots of group 'mem' come all together",
    "request_without_slots": "it declares HVD_CAP_REQUEST without the req_* slots",
    "both_modes": "it declares both HVD_CAP_STREAM and HVD_CAP_REQUEST",
    "neither_mode": "it declares neither of HVD_CAP_STREAM and HVD_CAP_REQUEST",
    "abort_without_slot": "it declares HVD_CAP_ABORT without the slot abort",
    "group_without_slots": "it declares HVD_CAP_GROUP_* without the slots group_begin and group_end",
    "no_memory": "it declares neither HVD_CAP_MEM_HOST nor HVD_CAP_MEM_DEVICE",
    "device_memory_of_what": "it declares HVD_CAP_MEM_DEVICE but names no device_types",
    "null_device_type": "its device table names no device_type",
    "options_null": "it declares 1 options and a NULL list of them",
    "options_absurd": "it declares 1152921504606846976 options",
    "options_short": "its option list says it has 24 bytes",
    "option_without_name": "option 0 has no name",
}


@pytest.fixture(scope="module")
def verdicts(toolchain):
    """Name of the forgery -> the loader's answer."""
    output = toolchain.must(toolchain.program(HERE / "forge_driver.cc"))
    found: dict[str, str] = {}
    name = ""
    for line in output.splitlines():
        if line.startswith("  "):
            found[name] += "\n" + line
        else:
            name, _, found[name] = line.partition(": ")
    return found


def test_handshake_every_forgery_is_judged(verdicts):
    assert set(verdicts) == ACCEPTED | set(REFUSED)


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_handshake_accepts(verdicts, name):
    assert verdicts[name] == "accepted"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_handshake_refuses(verdicts, name):
    assert REFUSED[name] in verdicts[name]


def test_handshake_message_layout(verdicts):
    assert verdicts["missing_create"] == (
        "horovod: backend 'forged' (the forge) failed to load.\n"
        "  cause: its comm table lacks the required slot(s): create\n"
        "  fix: rebuild or reinstall the backend; its author finds the rules in docs/backend-abi.md"
    )


@pytest.fixture(scope="module")
def loader(toolchain):
    program = toolchain.program(HERE / "load_driver.cc")
    return lambda path, name="forged": toolchain.must(program, path, name).rstrip("\n")


def test_load_says_why_a_file_cannot_be_opened(loader, tmp_path):
    missing = tmp_path / "libnowhere.so"
    assert loader(missing) == (
        f"horovod: backend 'forged' ({missing}) failed to load.\n"
        f"  cause: {missing}: cannot open shared object file: No such file or directory\n"
        "  fix: reinstall the wheel that the backend came with, and check that LD_LIBRARY_PATH names the "
        "libraries it needs"
    )
    text = tmp_path / "libtext.so"
    text.write_text("I am a backend, honestly.\n" * 10)
    assert "cause: " in loader(text) and "invalid ELF header" in loader(text)


def test_load_names_a_missing_symbol(loader, toolchain, tmp_path):
    source = tmp_path / "needy.cc"
    source.write_text('extern "C" int vendor_secret(); int (*p)() = &vendor_secret;\n')
    library = toolchain.library(source, "needy")
    assert "undefined symbol: vendor_secret" in loader(library)


def test_load_another_major_is_recognised(loader, toolchain, tmp_path):
    source = tmp_path / "future.cc"
    source.write_text('extern "C" __attribute__((visibility("default"))) void hvd_backend_entry_v2() {}\n')
    assert loader(toolchain.library(source, "future")) == (
        "horovod: backend 'forged' needs backend ABI 2.x; this hvd-core offers 1.1.  "
        "fix: install a newer hvd-core"
    )


def test_load_a_library_that_is_no_backend(loader, toolchain, tmp_path):
    source = tmp_path / "plain.cc"
    source.write_text("int answer() { return 42; }\n")
    assert "exports no hvd_backend_entry_v1, so it is no backend" in loader(
        toolchain.library(source, "plain")
    )


def test_load_accepts_the_sample(loader, toolchain):
    library = loaded_loopback(toolchain)
    assert loader(library, "loopback") == "loopback 1.0 LOOPBACK comm"
    assert "the library says that it is backend 'loopback'" in loader(library, "other")


@pytest.mark.parametrize("backend", [b for b in installed() if b.library], ids=lambda b: b.name)
def test_load_accepts_what_ships(loader, backend):
    try:
        library = backend.path()
    except BackendLoadError as error:
        pytest.skip(f"not built in this checkout: {error}")
    said = loader(library, backend.name)
    # A checkout may have a backend whose vendor's library this machine lacks.
    assert said.startswith((backend.name + " ", f"UNAVAILABLE {backend.name}: load: "))
