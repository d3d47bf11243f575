"""Imports MXNet. MXNet 1.9.1, its last release, uses six names that NumPy 1.24 took away; they are put back before.

The names stand for types of Python, as they did in NumPy before. MXNet also looks them up later, so they stay. A program
that imports mxnet before horovod.mxnet gets NumPy's error about `np.bool` from MXNet: swap the two lines.
"""

import builtins
from types import ModuleType

import numpy as np

_NAMES = ("bool", "object", "int", "float", "complex", "str")


def load_mxnet() -> ModuleType:
    """The module mxnet.

    Raises:
        ImportError: MXNet is not installed, or NumPy is too new for it. The text says what to install.
    """
    if int(np.__version__.partition(".")[0]) >= 2:
        raise ImportError(
            f"MXNet 1.9.1 does not work with NumPy {np.__version__}. Install it beside an older one: "
            "pip install 'mxnet==1.9.1' 'numpy<2'."
        )
    for name in _NAMES:
        if name not in vars(np):
            setattr(np, name, getattr(builtins, name))
    try:
        import mxnet
    except ImportError as error:
        raise ImportError(
            f"horovod.mxnet needs MXNet, which cannot be imported: {error}. Install it with: "
            "pip install 'mxnet==1.9.1' 'numpy<2'."
        ) from error
    return mxnet


mx = load_mxnet()
