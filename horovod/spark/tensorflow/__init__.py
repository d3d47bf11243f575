"""In place of a part of Horovod on Spark. Importing it raises ImportError that names what to use instead."""

from horovod.common.missing import missing_part

raise missing_part(__name__)
