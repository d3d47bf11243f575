"""Old and new host against old and new plugin: slots, arguments, out-structs and arrays, all pairings.

The newer header is made here from the real one, by appending as a future minor would.
"""

from __future__ import annotations

import pytest

from abi_toolchain import matrix_hosts, matrix_plugins, newer_headers


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """An include folder with the headers of a would-be ABI 1.2."""
    return newer_headers(tmp_path_factory.mktemp("newer") / "one_minor_on")


@pytest.fixture(scope="module")
def hosts(toolchain, newer):
    return matrix_hosts(toolchain, newer)


@pytest.fixture(scope="module")
def plugins(toolchain, newer):
    return matrix_plugins(toolchain, newer)


@pytest.mark.parametrize("plugin", ["old", "new"])
@pytest.mark.parametrize("host", ["old", "new"])
def test_abi_rule_every_pairing_works(toolchain, hosts, plugins, host, plugin):
    library, minor = plugins[plugin]
    done = toolchain.run(hosts[host], library, minor)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all good\n"
