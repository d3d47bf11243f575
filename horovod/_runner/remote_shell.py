"""Builds the command that runs another command on a host: ssh, or the template of --remote-shell.

A template is a command with {host} in it; the words of the remote command follow as arguments. If a shell on the other
host reads them, as with ssh, {command} stands for all of them as one quoted word. All users of both machines can see
this command line, so it holds no secret: the job itself is sent over standard input. Pure functions, for the launcher;
any thread.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_GUARD = Path(__file__).with_name("shell_guard.py")
# These join the words of a command by spaces and let a shell split them again.
_QUOTING = ("ssh", "rsh", "remsh")


class RemoteShell:
    """The command template for other hosts. Raises ValueError for a template without {host}, or a template together
    with -p or -i."""

    def __init__(
        self,
        template: str | None = None,
        port: int | None = None,
        identity: str | None = None,
        connect_s: float = 30,
        silence_s: float = 30,
    ):
        self._ssh: list[str] | None = None
        if template:
            if port is not None or identity is not None:
                raise ValueError(
                    "--ssh-port and --ssh-identity-file belong to the default remote shell; with "
                    "--remote-shell or HOROVOD_REMOTE_SHELL, put -p and -i into the template."
                )
            try:
                self._words = shlex.split(template)
            except ValueError as error:
                raise ValueError(
                    f"The remote shell {template!r} cannot be split into words: {error}."
                ) from None
            if not any("{host}" in word for word in self._words):
                raise ValueError(
                    f"The remote shell {template!r} has no {{host}}: put it in the place of the host's name, as in "
                    "'ssh -J gateway {host}'."
                )
        else:
            # Horovod's options, and: no questions, no messages, and an end when the other host is silent.
            options = {
                "PasswordAuthentication": "no",
                "StrictHostKeyChecking": "no",
                "LogLevel": "ERROR",
                "ConnectTimeout": math.ceil(connect_s),
                "ServerAliveInterval": max(1, int(silence_s // 3)),
                "ServerAliveCountMax": 3,
            }
            self._ssh = ["ssh"]
            for name, value in options.items():
                self._ssh += ["-o", f"{name}={value}"]
            self._ssh += [] if port is None else ["-p", str(port)]
            self._ssh += [] if identity is None else ["-i", identity]
            self._words = [*self._ssh, "{host}"]
        quoting = os.path.basename(self._words[0]) in _QUOTING
        if quoting and not any("{command}" in word for word in self._words):
            self._words.append("{command}")

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """The command to execute here so that `words` are executed on `host`. Raises ValueError if the host name starts
        with '-'."""
        if host.startswith("-"):
            raise ValueError(f"The host name {host!r} would be taken for an option of the remote shell.")
        made, placed = [], False
        for word in self._words:
            placed = placed or "{command}" in word
            made.append(word.replace("{host}", host).replace("{command}", shlex.join(words)))
        return made if placed else made + list(words)

    def resolve(self, host: str) -> str:
        """The name or address behind a name that only ssh's configuration knows; else the same name."""
        if self._ssh is None or host.startswith("-"):
            return host
        try:
            shown = subprocess.run(
                [*self._ssh, "-G", host],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=10,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return host
        for line in shown.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname" and value:
                return value
        return host


def agent_words(python: str) -> list[str]:
    """The command of the agent. Its PYTHONPATH is this installation's folder, so hosts that share it need no other."""
    packages = str(Path(__file__).resolve().parents[2])
    # Safe path: a file in the user's folder must not hide a module of ours.
    variables = [f"PYTHONPATH={packages}", "PYTHONSAFEPATH=1"]
    return ["env", *variables, python, "-m", "horovod._runner.agent"]


def guarded(command: Sequence[str]) -> list[str]:
    """The same command, which the kernel ends when the thread that starts it ends."""
    return [sys.executable or "python3", "-I", "-S", str(_GUARD), str(os.getpid()), *command]
