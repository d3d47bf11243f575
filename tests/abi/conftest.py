"""The compiler and the libraries that this folder's tests share."""

import pytest

from abi_toolchain import Toolchain


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return Toolchain()
