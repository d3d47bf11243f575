"""What the launchers' variables say about this process: all of them, also those that are not used.

One launcher may have started another (srun starts mpirun's helpers), and then both have left variables. The inner one is
right, and it is the one that identity.py reads first. Variables that a script has exported by hand look the same.
Reads the given mapping only.
"""

import logging
from dataclasses import dataclass

from hvd_core._bootstrap.identity import PAIRS

_log = logging.getLogger("horovod")
_ALL = (("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"), *PAIRS)


@dataclass(frozen=True)
class Claim:
    """A launcher's word: the texts of its two variables."""

    launcher: str
    variables: tuple
    rank: str
    size: str

    def __str__(self):
        return f"{self.launcher} says rank {self.rank} of {self.size} ({', '.join(self.variables)})"


def claims(environ):
    """The Claims of all launchers whose two variables are set, in the order in which they are believed."""
    return [
        Claim(launcher, (rank, size), environ[rank].strip(), environ[size].strip())
        for launcher, rank, size in _ALL
        if rank in environ and size in environ
    ]


def disagreement(environ):
    """The sentences about launchers that contradict the one that is believed, or ""."""
    found = claims(environ)
    others = [claim for claim in found[1:] if (claim.rank, claim.size) != (found[0].rank, found[0].size)]
    if not others:
        return ""
    return (
        f"The variables of {len(others) + 1} launchers are set and differ: {found[0]}, which is used; "
        f"{'; '.join(map(str, others))}. If the first is left over, unset its variables before the program starts."
    )


def warn_of_contradiction(identity, environ):
    """Logs a warning where the job is likely to be another one than the launcher has started: one process instead of
    several, or general variables (RANK) that no torchrun has set."""
    found = claims(environ)
    if not found or found[0].launcher == "horovodrun":
        return  # its variables are its own; nothing else sets them
    more = any(claim.size.isdigit() and int(claim.size) > 1 for claim in found[1:])
    by_hand = found[0].launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in environ
    if (identity.size == 1 and more) or by_hand:
        text = disagreement(environ)
        if text:
            _log.warning("%s", text)
