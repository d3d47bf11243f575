"""The component that all front ends share: the NumPy API here, and those of the frameworks in ``horovod``.

- ``operations``: names of operations and of requests, and their numbers in the native front-end table
- ``reductions``: reduce ops as callers number them, and as the engine does
- ``element_types``: which element types can be moved and reduced
- ``refusals``: how a call that fails on this rank fails on the other ranks too
- ``groups``, ``rows``: checks of the arguments of grouped operations, of alltoall and reducescatter
- ``job_operations``: join and barrier
- ``host_arrays``: outputs of the engine as NumPy arrays

The checks raise ValueError and tell no other rank; a front end makes them inside of a guard of ``refusals``. No module
here imports a framework or the compiled part of the engine. docs/write-a-front-end.md shows how the pieces are used.
"""
