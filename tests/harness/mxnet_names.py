"""For the fork server of MXNet: puts the names back that MXNet needs of NumPy, as horovod.mxnet does before it imports
MXNet. Children import horovod.mxnet itself."""

import builtins

import numpy as np

for name in ("bool", "object", "int", "float", "complex", "str"):
    if name not in vars(np):
        setattr(np, name, getattr(builtins, name))
