"""log_to_driver(), for functions that HorovodRunner runs."""

from horovod.spark._channel import log_to_driver

__all__ = ["log_to_driver"]
