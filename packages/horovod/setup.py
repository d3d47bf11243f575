"""Builds the wheel `horovod`: metadata that require hvd-core, and one startup file. It has no package and no module.

The version is that of hvd-core, read from the checkout; a source distribution has it in its PKG-INFO.
"""

import re
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
STARTUP = "horovod-of-hvd-core.pth"

# The original's names of extras, and ours: what `pip install horovod[NAME]` brings. Empty ones exist so that the
# requirements of other distributions can be met; the part itself says what is missing when it is imported.
_TORCH, _TENSORFLOW, _KERAS = "torch>=2.4", "tensorflow>=2.15", "keras>=2.15"
EXTRAS = {
    "pytorch": [_TORCH],
    "tensorflow": [_TENSORFLOW],
    "keras": [_KERAS],
    "mxnet": ["mxnet==1.9.1", "numpy<2"],
    "spark": ["pyspark>=3.5", "pandas>=2.2", "pyarrow>=15", "fsspec>=2024.2"],
    "ray": [],
    "all-frameworks": [_TORCH, _TENSORFLOW, _KERAS],
    "mpi": ["hvd-backend-mpi"],
    "gloo": ["hvd-backend-gloo"],
    "nccl": ["hvd-backend-nccl"],
}


def version() -> str:
    """The version of hvd-core in the checkout around this folder, else that of the source distribution."""
    places = (
        (HERE.parents[1] / "hvd_core" / "version.py", r'^__version__ = "(.+)"$'),
        (HERE / "PKG-INFO", r"^Version: (.+)$"),
    )
    for path, pattern in places:
        if path.is_file():
            return re.search(pattern, path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    raise SystemExit(f"{HERE}: build the wheel in the checkout of hvd-core, or from its source distribution.")


class WithStartupFile(build_py):
    """Puts the startup file beside the packages, where Python looks for it."""

    def run(self) -> None:
        super().run()
        self.mkpath(self.build_lib)
        shutil.copy(HERE / STARTUP, self.build_lib)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [str(Path(self.build_lib) / STARTUP)]


class PureDistribution(Distribution):
    """Without it, setuptools would leave out the folder that holds the startup file alone."""

    def has_pure_modules(self) -> bool:
        return True


setup(
    version=version(),
    install_requires=[f"hvd-core=={version()}"],
    extras_require=EXTRAS,
    packages=[],
    py_modules=[],
    cmdclass={"build_py": WithStartupFile},
    distclass=PureDistribution,
)
