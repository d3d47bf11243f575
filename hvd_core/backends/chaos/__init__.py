"""The backend ``chaos``: collectives that really compute, and misbehave when told to. For tests of what runs above them.

HOROVOD_BACKEND=chaos HOROVOD_BACKEND_CHAOS_FAIL_RANK=1 HOROVOD_BACKEND_CHAOS_FAIL_AT_OP=3 horovodrun ...

Never chosen automatically. Slow: everything goes through rank 0, in Python.
"""

from hvd_core.backends.chaos.backend import ChaosBackend

__all__ = ["ChaosBackend"]
