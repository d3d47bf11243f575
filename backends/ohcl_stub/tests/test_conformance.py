"""hvd-core's conformance kit on this backend."""

from hvd_core.conformance import CommonCases


class TestOhclStub(CommonCases):
    backend = "ohcl_stub"
