"""The conformance kit's command, with the words that stand for the interpreter of its processes.

python kit_program.py WORD ... -- ARGUMENT ...
"""

import sys

from hvd_core.conformance import _command, _session

if __name__ == "__main__":
    end = sys.argv.index("--")
    _session.INTERPRETER[:] = sys.argv[1:end]
    del sys.argv[1 : end + 1]
    sys.exit(_command.main())
