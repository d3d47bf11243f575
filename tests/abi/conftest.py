"""The compiler that this folder's tests share, for what is built once."""

import pytest

from abi_toolchain import Toolchain


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return Toolchain()
