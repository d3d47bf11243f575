"""hvd-core's conformance kit on this backend."""

from hvd_core.conformance import CommonCases


class TestEcclStub(CommonCases):
    backend = "eccl_stub"
