"""The compiler that this folder's tests share, with what it has built in this session."""

import pytest

from abi_toolchain import Toolchain


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    return Toolchain(tmp_path_factory.mktemp("abi"))
