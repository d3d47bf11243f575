"""Process sets under the names that programs written for Horovod import. ``hvd_core._runtime.process_sets``
defines them."""

from hvd_core._runtime.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_core._runtime.process_sets import temporary as _temp_process_set_object

__all__ = [
    "ProcessSet",
    "_temp_process_set_object",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
]
