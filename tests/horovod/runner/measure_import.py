"""Prints the processor seconds that `import horovod` takes, and the heavy packages that it loads. The program itself
imports next to nothing, so that the figure holds all that horovod needs."""

import sys
import time


def main():
    start = time.process_time()
    import horovod  # noqa: F401

    seconds = time.process_time() - start
    heavy = {"torch", "tensorflow", "numpy", "yaml", "hvd_core", "cloudpickle"} & set(sys.modules)
    print(seconds, *heavy)


if __name__ == "__main__":
    main()
