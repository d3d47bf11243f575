"""The backend ``chaos``: collectives that compute correctly, and fail on request. For tests of the layers above a
backend.

HOROVOD_BACKEND=chaos HOROVOD_BACKEND_CHAOS_FAIL_RANK=1 HOROVOD_BACKEND_CHAOS_FAIL_AT_OP=3 horovodrun ...

Never chosen automatically. Slow: all data goes through rank 0, in Python.
"""

from hvd_core.backends.chaos.backend import ChaosBackend

__all__ = ["ChaosBackend"]
