"""Environment variables that may differ between ranks: which must be equal, which rank's value counts if they differ, and
how to make a launcher pass them to all ranks.

Open MPI passes only the variables that ``-x`` names to other hosts, so a variable of the shell reaches the ranks on
mpirun's own host only. Pure functions of the values of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MUST_MATCH = {
    "HOROVOD_EMULATION": True,
    "HOROVOD_DYNAMIC_PROCESS_SETS": False,
    "HOROVOD_HIERARCHICAL_OVERLAP": True,
}
"""Switch -> its value when unset. Ranks act on these together: with different values some ranks would wait for the others
forever, or fail alone."""

CHOICE = ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER")
"""Variables of the choice of backends. The agreement compares the choices; these names only appear in its message."""

FIRST_RANK_DECIDES = ("HOROVOD_FUSION_THRESHOLD",)
"""Variables of which only rank 0 uses its value. A difference is harmless, but may surprise the user."""

EACH_ITS_OWN = ("HOROVOD_CYCLE_TIME",)
"""Variables of which every rank uses its own value; the largest one determines the speed of the job."""

_OFF = ("0", "false", "no", "off")


def switches(environ: Mapping[str, str]) -> dict[str, str]:
    """This rank's values of the variables in MUST_MATCH: "1" or "0"."""
    texts = {name: environ.get(name, "").strip().lower() for name in MUST_MATCH}
    return {
        name: str(int(texts[name] not in _OFF if texts[name] else unset))
        for name, unset in MUST_MATCH.items()
    }


def tuning(environ: Mapping[str, str]) -> dict[str, str]:
    """This rank's values of the variables whose differences are only warned of; "" for unset."""
    return {name: environ.get(name, "").strip() for name in (*FIRST_RANK_DECIDES, *EACH_ITS_OWN)}


def differing(values: Sequence[Mapping[str, str]]) -> list[str]:
    """The variables that do not have one value on all ranks."""
    return [name for name in values[0] if len({one.get(name, "") for one in values}) > 1]


def warning(name: str, values: str, launcher: str) -> str:
    """Rank 0's warning about a difference that is not an error. ``values`` lists the ranks by value."""
    meaning = "rank 0's value is used" if name in FIRST_RANK_DECIDES else "each rank uses its own"
    return f"horovod: ranks do not agree on {name}; {meaning}.  {values}\n  fix: {remedy(name, launcher)}"


def remedy(name: str, launcher: str) -> str:
    """How to give all ranks the same value, for this launcher (Identity.launcher; "" if unknown)."""
    own = "set it in every rank's environment"
    if launcher == "mpich":
        return f"mpirun -genv {name} VALUE, or {own}"
    if launcher == "srun":
        return f"srun --export=ALL,{name}=VALUE, or {own}"
    if launcher in ("torchrun", "horovodrun"):
        return f"{own}, on every host"
    return f"mpirun -x {name}, or {own}"
