"""Puts the packages of this environment behind those of another one: python put_behind.py ENVIRONMENT

So an environment with PySpark finds hvd-core and the frameworks here, and only what it needs in other versions is in it.
"""

import sys
import sysconfig
from pathlib import Path


def main() -> None:
    there = Path(sys.argv[1]) / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    if there.is_dir():
        own = sysconfig.get_path("purelib")
        (there / "behind.pth").write_text(f"import site; site.addsitedir({own!r})\n")


if __name__ == "__main__":
    main()
