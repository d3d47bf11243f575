"""The one place that holds the version number.

The build reads it by regular expression, `horovod.__version__` and `hvd_core.__version__` repeat it.
Every module may import it, on any thread; it must import nothing.
"""

__version__ = "0.29.0"
