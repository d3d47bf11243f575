"""What horovodrun prints when it is called without arguments, and its remarks in a job of LSF. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

INTRODUCTION = """\
horovodrun starts a command once per process of a job.

  horovodrun -np 2 python train.py                          two processes on this machine
  horovodrun -np 4 -H h1:2,h2:2 python train.py             two each on two hosts, over ssh
  horovodrun -np 4 --hostfile hosts python train.py         the same; lines of the file: h1 slots=2
  horovodrun --min-np 2 --host-discovery-script hosts.sh python train.py
                                                            elastic: the number of processes changes
  horovodrun --check-build                                  what is installed here
  horovodrun --help                                         all options
"""


def lsf_hosts(environ: Mapping[str, str]) -> str | None:
    """The hosts of a job of LSF as -H takes them, from LSB_MCPU_HOSTS ("h1 2 h2 2"); None outside of LSF."""
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    if "LSB_JOBID" not in environ or not words or len(words) % 2 or not all(map(str.isdecimal, words[1::2])):
        return None
    return ",".join(f"{host}:{slots}" for host, slots in zip(words[::2], words[1::2], strict=True))


def no_jsrun(environ: Mapping[str, str]) -> str:
    """Why --jsrun does not work, and what to do."""
    text = "--jsrun is not supported: there was no LSF to write and try it on. "
    if "LSB_JOBID" not in environ:
        return f"{text}This is no job of LSF, either. Leave it out: horovodrun starts the processes, or mpirun (--mpi)."
    hosts = lsf_hosts(environ)
    where = f"-H {hosts}" if hosts else "-H and the hosts of this job"
    return f"{text}Start with horovodrun {where} if ssh works between the hosts, or with the mpirun of the job (--mpi)."


def no_number(environ: Mapping[str, str]) -> str:
    """The complaint about a missing -np."""
    text = "argument -np/--num-proc is required"
    hosts = lsf_hosts(environ)
    if hosts is None:
        return text
    slots = sum(int(part.rpartition(":")[2]) for part in hosts.split(","))
    return f"{text}; all slots of this job of LSF: -np {slots} -H {hosts}"
