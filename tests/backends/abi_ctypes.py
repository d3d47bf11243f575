"""The ABI's mirror in ctypes, which is part of the conformance kit, under the name these tests know it by."""

from hvd_core.conformance._abi import *  # noqa: F403
