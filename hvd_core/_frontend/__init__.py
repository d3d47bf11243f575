"""The component that all front ends share: the NumPy API, and those of the frameworks in ``horovod``.

- ``operations``: names and numbers of operations, reductions and element types; checks of arguments; join and barrier
- ``memory``: memory that the ranks of a host share, and tensors that are copied through host memory
- ``initial_weights``: the warning of ranks that begin to train with different weights

How a call that fails on this rank fails on the other ranks too: ``hvd_core._runtime.failures``. The checks here raise
ValueError and notify no other rank; a front end makes them inside of such a guard. No module here imports a framework or
the native module. docs/write-a-front-end.md shows how the pieces are used.
"""
