"""Python that is run inside a checkout imports the checkout's folders, which hide an hvd-core that is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import hvd_core

PROGRAM = str(Path(__file__).with_name("load_compiled_part.py"))


def copy_of_sources(folder: Path) -> Path:
    compiled = shutil.ignore_patterns("*.so", "*.a", "__pycache__", "lib", "engine", "include")
    return Path(shutil.copytree(Path(hvd_core.__file__).parent, folder / "hvd_core", ignore=compiled))


def error_of(checkout: Path, installed: Path) -> str:
    # -S: the hooks of an editable install would find the compiled module of the project's own checkout.
    command = [sys.executable, "-S", PROGRAM, str(checkout), str(installed)]
    program = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, cwd=checkout)
    return program.stdout.strip()


def test_the_message_says_that_the_checkout_hides_what_is_installed(tmp_path):
    package = copy_of_sources(tmp_path / "checkout")
    installed = tmp_path / "installed" / "hvd_core"
    installed.mkdir(parents=True)

    assert error_of(package.parent, installed.parent).endswith(
        "Reinstall hvd-core for this Python and platform."
    )

    (package / "engine").mkdir()  # wheels have no sources of the engine
    text = error_of(package.parent, installed.parent)
    assert text.startswith("hvd_core._core the package hvd_core was imported from a source checkout, ")
    assert str(package.parent) in text
    assert "hides" not in text
    assert text.endswith(
        "Run Python from another folder, or compile the engine for the checkout: make install"
    )

    (installed / "_core.so").touch()
    assert f"it hides the hvd_core that is installed in {installed.parent}." in error_of(
        package.parent, installed.parent
    )
