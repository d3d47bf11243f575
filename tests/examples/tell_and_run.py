"""Runs a program as if it were the script, and says before in a file which process it is: a fork server's child is not
below its launcher.

python tell_and_run.py FOLDER PROGRAM [its options]     FOLDER/pid.<rank>
"""

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    folder, program, *options = sys.argv[1:]
    Path(folder, f"pid.{os.environ['HOROVOD_RANK']}").write_text(str(os.getpid()))
    sys.argv[:] = [program, *options]
    runpy.run_path(program, run_name="__main__")
