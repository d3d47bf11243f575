"""The supervisor: a small process between the launcher and the ranks. It makes sure that no process outlives the job.

The launcher, on other hosts the agent (local_ranks.py), starts this file with the plain interpreter, without site
packages, and exchanges lines of JSON with it over one socket whose descriptor is argv[1]. The supervisor forks the
ranks, reports their ends, and ends all of them when a rank fails on any host, when the launcher asks, and when the
launcher disappears. The kernel makes orphaned grandchildren its children, so that it finds them too. If the supervisor
itself is killed, the kernel kills the ranks. It has one thread only: that makes fork() safe, and the kernel's
parent-death signal follows threads.

With `execute PID COMMAND ...` this file becomes a remote shell that ends with the launcher PID (remote_ranks.py).

Not to be imported. It starts on every host for every job, so it imports only fast modules of the standard library; its
event loop and its reading of /proc are its own for that reason.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

# Neither is imported: typing is slow.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Json = dict[str, Any]

# After the first failure the other ranks get a moment to notice it, because their error messages say more than a signal.
# The sum of the first two stays below 5 s, within which the whole job must be over.
REPORT_S = 1.0
FAILURE_GRACE_S = 3.0
# After a request by the user: time to write a checkpoint, as in Horovod's own launcher.
STOP_GRACE_S = 5.0
ORPHANED_GRACE_S = 2.0
# Helpers such as multiprocessing's resource tracker clean up and end by themselves if they get time.
LEFTOVER_WAIT_S = 0.5
LEFTOVER_GRACE_S = 2.0
GIVE_UP_KILLING_S = 10.0
KILL_INTERVAL_S = 0.02

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> int:
    """Linux' prctl(2). If it is forbidden, the other safeguards remain."""
    return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0))


def descendants() -> list[int]:
    """Process ids of every descendant, parents before their children.

    A zombie is among them: its first thread has ended, others may still run. A signal reaches these.
    """
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                # The name in parentheses may itself hold spaces and parentheses.
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"X":
            children.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    frontier = [os.getpid()]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, ())]
        found += frontier
    return found


def send_signal(pids: Iterable[int], number: int) -> None:
    """Sends a signal to processes that may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass  # the process has ended, or belongs to another user now


def start_rank(rank: Json, environment: dict[str, str], directory: str | None) -> int:
    """Forks and executes one rank in a session of its own; returns its process id."""
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)  # the supervisor died before the line above took effect
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(rank["stdout"], 1)
        os.dup2(rank["stderr"], 2)
        for descriptor in rank["keep"]:
            os.set_inheritable(descriptor, True)
        try:
            if directory is not None:
                os.chdir(directory)
            os.execvpe(rank["command"][0], rank["command"], {**environment, **rank["env"]})
        except OSError as error:
            text = f"horovodrun: cannot start {rank['command'][0]!r}: {error.strerror}\n"
            os.write(2, text.encode(errors="replace"))
            os._exit(127 if isinstance(error, (FileNotFoundError, NotADirectoryError)) else 126)
    except BaseException as error:
        os.write(2, f"horovodrun: cannot start rank {rank['rank']}: {error!r}\n".encode(errors="replace"))
    finally:
        os._exit(126)


# Controller, mount, the file with the number of kills, that with the limit: versions 2 and 1 of control groups.
MEMORY_FILES = (
    ("", "/sys/fs/cgroup", "memory.events", "memory.max"),
    ("memory", "/sys/fs/cgroup/memory", "memory.oom_control", "memory.limit_in_bytes"),
)


def number_in(path: str, key: str = "") -> int | None:
    """The number in a file of a control group, in the first line that begins with `key`; None without one."""
    try:
        with open(path) as lines:
            values = [line.split()[-1] for line in lines if line.startswith(key)]
    except OSError:
        return None
    # Without a limit: "max", or a number near 2^63.
    return int(values[0]) if values and values[0].isdigit() and int(values[0]) < 1 << 60 else None


def memory_files() -> tuple[str, str]:
    """The last two of MEMORY_FILES for the control group of this process and its ranks; empty if there is none."""
    if os.path.exists("/proc/self/cgroup"):
        for line in open("/proc/self/cgroup"):  # noqa: SIM115 (closed with the loop)
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for name, mount, kills, limit in MEMORY_FILES:
                # In a container the path may be the host's, and the mount the container's own group.
                for folder in (mount + path, mount) if name in controllers.split(",") else ():
                    if number_in(f"{folder}/{kills}", "oom_kill ") is not None:
                        return f"{folder}/{kills}", f"{folder}/{limit}"
    return "", ""


class Supervisor:
    """The state of one job on this host: the running ranks, and the stage of its end."""

    def __init__(self, control: int) -> None:
        self.control = control
        self.unread = b""
        self.ranks: dict[int, int] = {}  # process id -> rank
        self.childless = False
        self.launcher_gone = False
        self.kills_file, self.limit_file = memory_files()
        self.kills = number_in(self.kills_file, "oom_kill ")  # those that an event has reported
        # running -> announced -> reporting -> terminating -> killing; leftover once all ranks have ended
        self.stage = "running"
        self.grace = 0.0  # seconds between an announced end and the end
        self.deadline: float | None = None
        self.kill_until = 0.0

    def receive(self) -> bool:
        """Reads data from the launcher; returns False at the end of the stream."""
        try:
            chunk = os.read(self.control, 1 << 16)
        except ConnectionError:
            return False
        self.unread += chunk
        return bool(chunk)

    def read_line(self) -> Any:
        """The next line from the launcher, or None at the end of the stream."""
        while b"\n" not in self.unread:
            if not self.receive():
                return None
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def report(self, **event: object) -> None:
        """Sends an event to the launcher."""
        if self.launcher_gone:
            return
        data = json.dumps(event).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self.control, data) :]
        except OSError:
            self.launcher_gone = True

    def begin(self, stage: str, seconds: float) -> None:
        """Enters a stage, which ends after `seconds`."""
        self.stage, self.deadline = stage, time.monotonic() + seconds

    def terminate(self, grace: float) -> None:
        """Sends SIGTERM to all processes; those that still run after `grace` seconds are killed."""
        self.begin("terminating", grace)
        send_signal(descendants(), signal.SIGTERM)

    def announce(self) -> None:
        """The end of this host is near: the ranks of an elastic job report it to the driver, and leave at their next
        commit. Their helpers, such as data loaders, work on until then."""
        if self.stage == "running":
            self.begin("announced", self.grace)
            send_signal(list(self.ranks), signal.SIGTERM)

    def fail(self) -> None:
        """A rank failed: the other ranks get a moment before they are ended."""
        if self.stage == "running":
            self.begin("reporting", REPORT_S)

    def obey(self, word: str) -> None:
        """A request of the launcher, or SIGTERM."""
        if word == "fail":
            self.fail()  # a rank failed on another host
        elif word == "announce":
            self.announce()
        elif word == "kill" or self.stage in ("terminating", "killing"):
            self.kill()  # a second request to stop kills immediately
        else:
            self.report(event="stopping")
            self.terminate(STOP_GRACE_S)

    def kill(self) -> None:
        """Sends SIGKILL from now on, until no process is left."""
        self.kill_until = time.monotonic() + GIVE_UP_KILLING_S
        self.begin("killing", 0)

    def lose_launcher(self) -> None:
        """The launcher has gone."""
        self.launcher_gone = True
        if self.stage != "killing":
            self.terminate(ORPHANED_GRACE_S)

    def reap(self) -> None:
        """Collects every ended child: ranks, and orphans.

        Without a child there is no descendant either: the supervisor is the parent of every orphan of the job.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            rank = self.ranks.pop(pid, None)
            if rank is None:
                continue
            code = os.waitstatus_to_exitcode(status)  # see failures.py
            asked = self.stage in ("terminating", "killing")
            event: Json = {"event": "exit", "rank": rank, "code": code, "asked": asked}
            # A shell around a rank exits with 128 + SIGKILL.
            if code in (-signal.SIGKILL, 128 + signal.SIGKILL) and not asked:
                event["out_of_memory"] = self.lack_of_memory()
            self.report(**event)
            if code:
                self.fail()

    def lack_of_memory(self) -> str:
        """The limit, if the kernel has killed a process of this control group that no event has reported. It does not say
        which: a helper of a rank may have been the one."""
        found = number_in(self.kills_file, "oom_kill ")
        if self.kills is None or found is None or found <= self.kills:
            return ""
        self.kills += 1
        limit = number_in(self.limit_file)
        return "no cgroup limit here" if limit is None else f"cgroup limit {limit >> 20} MiB"

    def advance(self) -> bool:
        """Takes the next step of the end when it is due; returns True when no process is left."""
        if not self.ranks and self.stage in ("running", "announced", "reporting"):
            self.begin("leftover", LEFTOVER_WAIT_S)
        if self.childless:
            return True
        now = time.monotonic()
        if self.deadline is None or now < self.deadline:
            return False
        if self.stage == "reporting":
            self.report(event="terminating")
            self.terminate(FAILURE_GRACE_S)
        elif self.stage == "announced":
            self.terminate(STOP_GRACE_S)
        elif self.stage == "leftover":
            self.terminate(LEFTOVER_GRACE_S)
        elif self.stage == "terminating":
            self.kill()
        if self.stage == "killing":
            left = descendants()
            if now > self.kill_until:
                self.report(event="unkillable", pids=left)
                return True
            # Repeated, because a process that is forked while the list is made is found in the next round only.
            send_signal(left, signal.SIGKILL)
            self.deadline = now + KILL_INTERVAL_S
        return False

    def wait_s(self) -> float | None:
        """How long to wait for an event."""
        if self.deadline is None:
            return None  # sleep until a signal, a message, or the launcher's end
        return max(0.0, self.deadline - time.monotonic())

    def run(self) -> None:
        """The whole job on this host."""
        wake, wake_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        ended: list[bool] = []  # signals that end programs
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # A launcher that blocks signals has handed its mask down; without SIGCHLD the supervisor would miss every end.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        prctl(PR_SET_CHILD_SUBREAPER, 1)

        job = self.read_line()
        if job is None:
            return
        self.grace = float(job["env"].get("HOROVOD_PREEMPTION_GRACE") or 0) if job["announce"] else 0.0
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        poller.register(self.control, select.POLLIN)
        launcher = -1
        try:
            # A forked child of the launcher may hold its end of the socket open; a pidfd is reliable.
            launcher = os.pidfd_open(job["launcher"])
            poller.register(launcher, select.POLLIN)
        except OSError:
            pass
        if os.getppid() != job["launcher"]:
            return

        inherited = {fd for rank in job["ranks"] for fd in (rank["stdout"], rank["stderr"], *rank["keep"])}
        for descriptor in (self.control, *inherited):
            os.set_inheritable(descriptor, False)
        for rank in job["ranks"]:
            pid = start_rank(rank, job["env"], job["directory"])
            self.ranks[pid] = rank["rank"]
            self.report(event="start", rank=rank["rank"], pid=pid)
        for descriptor in inherited:
            os.close(descriptor)

        self.reap()
        while not self.advance():
            # A request may have come together with the description of the job.
            wait_s = 0 if b"\n" in self.unread else self.wait_s()
            for descriptor, _ in poller.poll(None if wait_s is None else int(wait_s * 1000) + 1):
                if descriptor == wake:
                    os.read(wake, 4096)
                elif descriptor == launcher:
                    poller.unregister(launcher)
                    self.lose_launcher()
                elif not self.receive():
                    poller.unregister(self.control)
                    self.lose_launcher()
            while b"\n" in self.unread:
                self.obey(self.read_line())
            while ended:
                ended.pop()
                self.obey("announce" if self.grace else "stop")
            self.reap()


def execute(launcher: int, command: list[str]) -> int:
    """Replaces this process by `command`, a remote shell, which the kernel ends when the launcher ends, even by SIGKILL.

    Without this, a process that the launcher's program has forked could keep the remote shell's standard input open, and
    the job on the other host would continue. Returns an exit status if that is not possible.
    """
    # If prctl(2) is forbidden, the end of standard input still ends the job.
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != launcher:
        return 1  # it ended before the line above took effect
    # Python ignores SIGPIPE, and the executed program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    if sys.argv[1] == "execute":
        sys.exit(execute(int(sys.argv[2]), sys.argv[3:]))
    Supervisor(int(sys.argv[1])).run()
