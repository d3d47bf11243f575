"""The conformance kit's command, with another interpreter for the job of mpirun that it becomes.

python kit_restarts.py INTERPRETER -m hvd_core.conformance ARGUMENT ...
"""

import sys

from hvd_core.conformance import _command

if __name__ == "__main__":
    sys.executable = sys.argv[1]
    del sys.argv[1:4]
    sys.exit(_command.main())
