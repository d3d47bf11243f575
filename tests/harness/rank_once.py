"""What each rank of a launch of its own runs: one function, then the end of the process. See launch.py.

python rank_once.py CALL
"""

import importlib
import os
import pickle
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])


def main():
    place, arguments, folder, init, init_options = pickle.loads(Path(sys.argv[1]).read_bytes())
    importlib.import_module("harness.rank").folder = Path(folder)
    function = importlib.import_module("harness.rank_main").find_function(*place)
    if init is not None:
        importlib.import_module(init).init(**init_options)
    function(*arguments)
    (Path(folder) / f"returned.{os.environ.get('HOROVOD_RANK')}").touch()


if __name__ == "__main__":
    main()
