"""An arm64 Debian below build/arm64, whose programs run here under qemu-user: unpacked packages, no container.

    python tools/arm64.py COMMAND ...      # for example: python3 -c 'import platform; print(platform.machine())'

Needs apt, qemu-aarch64-static (on Debian: qemu-user-static) and user namespaces, but not root, and changes nothing of the
system: apt works in a folder of its own, and the kernel learns of the emulator in a user namespace (Linux 6.7 or newer).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "arm64"
DEBIAN = PLACE / "debian"
SITE = DEBIAN / "usr" / "local" / "lib" / "site"
EMULATOR = "qemu-aarch64-static"
# Python with its headers, and what shell scripts need.
PACKAGES = ("python3", "libpython3-dev", "libstdc++6", "coreutils", "dash")

# What an executable for this machine begins with; the kernel starts the emulator for it, which it opens at once.
_HANDLER = (
    r":hvd-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:%s:F"
)
_ENTER = """set -e
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
printf %s "$1" > /proc/sys/fs/binfmt_misc/register
for folder in proc dev sys; do mkdir -p "$2/$folder"; mount --rbind /$folder "$2/$folder"; done
shift
exec chroot "$@"
"""


# Exit status of commands that this machine cannot run.
UNAVAILABLE = 3


class Unavailable(Exception):
    """This machine cannot do it; the text says why."""


def command(*words: str) -> list[str]:
    """The command line that runs an arm64 command in the unpacked Debian."""
    emulator = shutil.which(EMULATOR)
    if not emulator:
        raise Unavailable(f"{EMULATOR} is not installed (on Debian: qemu-user-static)")
    handler = _HANDLER % emulator
    return [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        _ENTER,
        "sh",
        handler,
        str(DEBIAN),
        *words,
    ]


def environment() -> dict[str, str]:
    """The variables of such commands."""
    return {
        "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "PYTHONPATH": f"/{SITE.relative_to(DEBIAN)}",
    }


def run(*words: str, timeout: float = 600, **variables: str) -> str:
    """The output of an arm64 command."""
    result = subprocess.run(
        command(*words),
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    if result.returncode != 0:
        raise RuntimeError(f"{words} ended with {result.returncode}:\n{result.stdout[-6000:]}")
    return result.stdout


def python_version() -> str:
    """Of the unpacked Debian, for example "3.11"."""
    return os.readlink(DEBIAN / "usr" / "bin" / "python3").removeprefix("python")


def unpack() -> None:
    """Downloads and unpacks Debian's packages, unless they are there."""
    complete = PLACE / "complete"
    if complete.exists() and complete.read_text() == " ".join(PACKAGES):
        return
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable("there is no apt")
    shutil.rmtree(PLACE, ignore_errors=True)
    for name in ("apt/state/lists/partial", "apt/cache/archives/partial", "debian"):
        (PLACE / name).mkdir(parents=True)
    (PLACE / "apt" / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "Dir::State": PLACE / "apt" / "state",
        "Dir::State::status": PLACE / "apt" / "status",
        "Dir::Cache": PLACE / "apt" / "cache",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": "30",
    }
    apt = ["apt-get", "-q", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    _apt([*apt, "update"])
    _apt([*apt, "install", "-y", "--no-install-recommends", "--download-only", *PACKAGES])
    for name in ("bin", "lib", "sbin"):
        (DEBIAN / "usr" / name).mkdir(parents=True, exist_ok=True)
        (DEBIAN / name).symlink_to(f"usr/{name}")
    for archive in sorted((PLACE / "apt" / "cache" / "archives").glob("*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as files:
            tar = ["tar", "-x", "--no-same-owner", "--keep-directory-symlink", "-C", str(DEBIAN)]
            subprocess.run(tar, stdin=files.stdout, check=True)
    shutil.rmtree(PLACE / "apt")
    (DEBIAN / "tmp").mkdir(exist_ok=True)
    complete.write_text(" ".join(PACKAGES))


def install(wheel: Path, *requirements: str) -> None:
    """Installs a wheel, and what is required beside it, by this machine's pip: the emulated one takes minutes."""
    libc = (DEBIAN / "usr" / "lib" / "aarch64-linux-gnu" / "libc.so.6").read_bytes()
    newest = max(int(minor) for minor in re.findall(rb"GNU C Library .* version 2\.(\d+)", libc))
    platforms = [*(f"manylinux_2_{minor}_aarch64" for minor in range(newest, 16, -1)), "linux_aarch64"]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-q",
        "--no-compile",
        "--upgrade",
    ]
    target = ["--target", str(SITE), "--python-version", python_version(), "--implementation", "cp"]
    options = ["--only-binary", ":all:", *(word for name in platforms for word in ("--platform", name))]
    installed = PLACE / "installed"
    if not installed.exists() or installed.read_text() != " ".join(requirements):
        subprocess.run([*pip, *target, *options, *requirements], check=True)
        installed.write_text(" ".join(requirements))
    subprocess.run([*pip, "--no-deps", *target, *options, str(wheel)], check=True)


def _apt(words: list[str]) -> None:
    result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise Unavailable(f"apt has no packages for arm64:\n{result.stdout[-2000:]}")


def main() -> int:
    try:
        unpack()
        return subprocess.run(command(*sys.argv[1:]), env=environment()).returncode
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
