"""Programs of one process without a launcher: one function each, named on the command line."""

import sys


def make_17_backends():
    """Classes of backends, of which a process can register 16."""
    from hvd_core.backends import PythonBackend, register_python_backend

    for i in range(16):
        _ = register_python_backend(type("B", (PythonBackend,), {"name": f"b{i}"})).path
    try:
        register_python_backend(type("B", (PythonBackend,), {"name": "b16"}))
    except Exception as error:
        print(type(error).__name__, error)


def raise_at_a_prompt():
    import code

    import numpy as np

    import hvd_core as hvd

    before = sys.excepthook
    hvd.init()
    sys.ps1 = ">>> "
    prompt = code.InteractiveInterpreter({"hvd": hvd, "np": np})
    prompt.runsource("1 / 0")
    prompt.runsource("print('still there:', hvd.allreduce(np.ones(2)))")
    hvd.shutdown()
    assert sys.excepthook is before


if __name__ == "__main__":
    globals()[sys.argv[1]]()
