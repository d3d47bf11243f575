"""The program of each rank of a Spark job: that of horovod.run, with the channel of log_to_driver().

Started as `python -m horovod.spark._rank_main`; not to be imported.
"""

from __future__ import annotations

import sys

from horovod._runner import run_task
from horovod.spark import _channel

if __name__ == "__main__":
    _channel.open_channel()
    sys.exit(run_task.main())
