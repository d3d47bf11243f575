"""PMI-1, the process manager's key-value space with a fence, over the descriptor that PMI_FD names.

`srun --mpi=pmi2` and the mpiexec of MPICH serve it to every process that they start. A line of words KEY=VALUE asks,
another one answers. One process per rank may connect. Under Slurm it may connect once only, so that MPI cannot start in
this process afterwards: Slurm would end the job. Nothing is sent when the connection ends, because "finalize" would let
the process manager wait for the other ranks. Used on the thread that runs init().
"""

import os
import select
import socket

from hvd_core._base.messages import LineBuffer, ProtocolError
from hvd_core._base.sockets import BootstrapError, BootstrapTimeout

_LONGEST_ANSWER = 1 << 16


class Pmi1:
    """The connection to the process manager. Raises BootstrapError if PMI_FD does not lead to one."""

    def __init__(self, environ, deadline):
        self._deadline = deadline
        self._lines = LineBuffer(_LONGEST_ANSWER)
        text = environ["PMI_FD"]
        try:
            self._fd = os.dup(int(text))
        except (ValueError, OSError) as error:
            raise BootstrapError(
                f"PMI_FD={text} is no descriptor of this process ({error}). Does another program, which closes "
                "descriptors, stand between the launcher and Python? Start Python directly."
            ) from None
        try:
            self._ask("cmd=init pmi_version=1 pmi_subversion=1")
            self._space = self._ask("cmd=get_my_kvsname")["kvsname"]
        except BaseException:
            self.close()
            raise

    def put(self, key, value):
        """Writes a pair of texts without blanks; the other ranks see it after fence()."""
        self._ask(f"cmd=put kvsname={self._space} key={key} value={value}")

    def fence(self):
        """Waits until every process of the launcher has called it."""
        self._ask("cmd=barrier_in", "reach hvd.init() in every process that the launcher started")

    def get(self, key):
        """The text under ``key``."""
        return self._ask(f"cmd=get kvsname={self._space} key={key}")["value"]

    def close(self):
        """Closes this connection; PMI_FD itself stays open."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _ask(self, line, what="answer"):
        try:
            os.write(self._fd, line.encode() + b"\n")
            while (answer := self._lines.next_line()) is None:
                self._read(what)
        except (OSError, ProtocolError) as error:
            if isinstance(error, BootstrapTimeout):
                raise
            raise BootstrapError(f"the launcher's process manager (PMI_FD) is gone: {error}") from error
        said = dict(word.partition("=")[::2] for word in answer.decode(errors="replace").split())
        if said.get("rc", "0") != "0":
            raise BootstrapError(
                f"the launcher's process manager refused {line.split()[0]}: {answer[:200]!r}"
            )
        return said

    def _read(self, what):
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(1000 * self._deadline.left()):
            raise BootstrapTimeout(
                f"the launcher's process manager (PMI-1) did not {what} within {self._deadline.seconds:g} s"
            )
        data = os.read(self._fd, _LONGEST_ANSWER)
        if not data:
            raise ConnectionError("it closed the connection")
        self._lines.add(data)


def finalize(environ, seconds):
    """Tells the process manager that this process ends as it should. Waits for its answer, `seconds` at most; if it is
    gone, or has been told by another library, nothing happens."""
    try:
        fd = int(environ["PMI_FD"])
        os.write(fd, b"cmd=finalize\n")
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(1000 * seconds)
    except (ValueError, OSError):
        pass


def own_host_name():
    """The name of this host, as a text without blanks."""
    return "".join(socket.gethostname().split()) or "localhost"
