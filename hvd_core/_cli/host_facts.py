"""Facts about this host that matter to a job, for a bug report. Reads files of the kernel and asks no network."""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

_LIMITS = ("NOFILE", "NPROC", "MEMLOCK", "AS", "STACK", "CORE", "FSIZE")
_GROUP_FILES = (
    "cpu.max",
    "memory.max",
    "memory.current",
    "pids.max",
    "pids.current",
    "cpuset.cpus.effective",
)
_SIOCGIFADDR = 0x8915


def host_facts() -> dict[str, Any]:
    """Cores, memory, limits, shared memory, network interfaces, kernel. Sizes are in bytes. A fact that the host does not
    tell is missing."""
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": _os_name(),
        "cores": {"online": os.cpu_count(), "of this process": sorted(os.sched_getaffinity(0))},
        "load": os.getloadavg(),
        "memory": _memory(),
        "control group": _control_group(),
        "limits": _limits(),
        "file systems": {path: _file_system(path) for path in ("/dev/shm", "/tmp", str(Path.cwd()))},
        "interfaces": _interfaces(),
        "pids": _number("/proc/sys/kernel/pid_max"),
        "ptrace_scope": _number("/proc/sys/kernel/yama/ptrace_scope"),
    }


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None


def _os_name() -> str:
    with suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    return ""


def _memory() -> dict[str, int]:
    facts = {}
    for line in _read("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "Shmem", "HugePages_Total"):
            number = int(rest.split()[0])
            facts[name] = number * 1024 if rest.endswith("kB") else number
    return facts


def _control_group() -> dict[str, str]:
    """The limits of this process's control group (version 2)."""
    own = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    folder = Path("/sys/fs/cgroup") / own.lstrip("/")
    if not folder.is_dir():  # in a container the path is the host's
        folder = Path("/sys/fs/cgroup")
    return {name: text for name in _GROUP_FILES if (text := _read(folder / name))}


def _limits() -> dict[str, list[int | str]]:
    def shown(value: int) -> int | str:
        return "unlimited" if value == resource.RLIM_INFINITY else value

    found = {name: getattr(resource, f"RLIMIT_{name}", None) for name in _LIMITS}
    return {name: list(map(shown, resource.getrlimit(n))) for name, n in found.items() if n is not None}


def _file_system(path: str) -> dict[str, int] | str:
    try:
        facts = os.statvfs(path)
    except OSError as error:
        return error.strerror or str(error)
    return {"size": facts.f_frsize * facts.f_blocks, "free": facts.f_frsize * facts.f_bavail}


def _interfaces() -> dict[str, dict[str, str]]:
    facts = {}
    for _, name in socket.if_nameindex():
        folder = Path("/sys/class/net") / name
        own = {key: text for key in ("operstate", "mtu", "speed") if (text := _read(folder / key))}
        address = _address(name)
        facts[name] = own | ({"address": address} if address else {})
    return facts


def _address(interface: str) -> str:
    """The first IPv4 address of an interface."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24])
    return ""
