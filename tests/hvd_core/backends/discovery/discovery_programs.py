"""Programs that look for plugins: one function each, named on the command line, with its arguments behind. The module
itself imports nothing of the project, as the functions tell what an import brings along."""

import os
import sys


def report_what_init_reads(*folders):
    """What a rank reads of others' metadata, and which modules come with init(). `folders` are appended to the path."""
    sys.path.extend(folders)
    seen = []
    sys.addaudithook(lambda event, args: seen.append(str(args[0])) if event == "open" else None)
    import numpy as np

    import hvd_core as hvd
    from hvd_core.backends import _discovery

    hvd.init()
    total = hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum)
    assert total.tolist() == [hvd.size()] * 3
    if os.environ.get("FIND"):
        found = _discovery.find(os.environ["FIND"], "test")
        _discovery.describe(found)
        print("found", found.version, found.from_spec)
    read = [f for f in seen if f.endswith("entry_points.txt")]
    modules = [m for m in ("stevedore", "importlib.metadata", "hvd_backend_alpha") if m in sys.modules]
    print("read", len(read), "modules", *modules, "spec", "HOROVOD_BACKEND_SPEC" in os.environ)


def find_lying():
    """Which of the wheels 'alpha' and 'lying' are found, all problems, and the error for the name 'lying'."""
    from hvd_core.backends import _discovery

    names = [c.name for c in _discovery.wheels() if c.name in ("alpha", "lying")]
    print(names, *[p.text for p in _discovery.problems()])
    try:
        _discovery.find("lying", "HOROVOD_BACKEND")
    except Exception as error:
        print(error)


def import_the_packages():
    import horovod  # noqa: F401
    from hvd_core.backends import BackendDescriptor  # noqa: F401

    heavy = ("stevedore", "numpy", "hvd_core._core", "hvd_backend_slow")
    print([m for m in heavy if m in sys.modules])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
