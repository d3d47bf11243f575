"""The backends of this repository pass the kit. Each class has three lines, as in a vendor's test suite."""

from pathlib import Path
from typing import ClassVar

import pytest

from hvd_core.conformance import CommonCases

pytestmark = pytest.mark.timeout(400)
STUB = (
    Path(__file__).parents[3] / "backends/eccl_stub/src/hvd_backend_eccl_stub/lib/libhvd_backend_eccl_stub.so"
)


class TestShm(CommonCases):
    backend = "shm"
    ranks = 3
    quick = True


class TestEcclStub(CommonCases):
    backend = "eccl_stub"
    library = str(STUB)
    ranks = 2
    quick = True


class TestTcp(CommonCases):
    backend = "tcp"
    ranks = 2
    quick = True


@pytest.mark.slow
class TestTcpInFull(CommonCases):
    backend = "tcp"
    ranks = 4


@pytest.mark.slow
class TestShmInFull(CommonCases):
    backend = "shm"
    ranks = 4


@pytest.mark.slow
class TestEcclStubInFull(CommonCases):
    """Each piece of device work takes its time, so that what is not waited for is seen."""

    backend = "eccl_stub"
    library = str(STUB)
    environment: ClassVar = {"TOPS_SIM_DELAY_US": "100"}


@pytest.mark.slow
class TestEcclStubWithHandles(CommonCases):
    """Device memory that is a handle: no address may be added to."""

    backend = "eccl_stub"
    library = str(STUB)
    ranks = 3
    quick = True
    environment: ClassVar = {"TOPS_SIM_MEMORY": "handle"}
