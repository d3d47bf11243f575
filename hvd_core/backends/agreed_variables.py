"""Environment variables that launchers do not carry to every rank: which must be equal, which rank counts where they are
not, and how each launcher is told to hand them on.

Open MPI gives other hosts only the variables that ``-x`` names, so a variable that is set in the shell reaches the ranks
beside mpirun and no others. Pure functions of what the ranks say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MUST_MATCH = {"HOROVOD_EMULATION": True, "HOROVOD_DYNAMIC_PROCESS_SETS": False}
"""Switches, with what they are when unset, that ranks act on together: with different values some would wait for the
others for ever, or fail alone."""

CHOICE = ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER")
"""They take part in the choice of backends, which is compared; here only to be named where that differs."""

FIRST_RANK_DECIDES = ("HOROVOD_FUSION_THRESHOLD",)
"""Only rank 0 uses its value, so that a difference does no harm but to expectations."""

EACH_ITS_OWN = ("HOROVOD_CYCLE_TIME",)
"""Every rank acts on its own value; the largest is what the job feels."""

_OFF = ("0", "false", "no", "off")


def switches(environ: Mapping[str, str]) -> dict[str, str]:
    """MUST_MATCH as this rank has them: "1" or "0"."""
    texts = {name: environ.get(name, "").strip().lower() for name in MUST_MATCH}
    return {
        name: str(int(texts[name] not in _OFF if texts[name] else unset))
        for name, unset in MUST_MATCH.items()
    }


def tuning(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables whose differences are told and no error, as they are set here; "" for unset."""
    return {name: environ.get(name, "").strip() for name in (*FIRST_RANK_DECIDES, *EACH_ITS_OWN)}


def differing(said: Sequence[Mapping[str, str]]) -> list[str]:
    """The names that do not have one value on all ranks."""
    return [name for name in said[0] if len({one.get(name, "") for one in said}) > 1]


def warning(name: str, values: str, launcher: str) -> str:
    """What rank 0 says about a difference that is no error; ``values`` lists ranks by value."""
    meaning = "rank 0's value is used" if name in FIRST_RANK_DECIDES else "each rank uses its own"
    return f"horovod: ranks do not agree on {name}; {meaning}.  {values}\n  fix: {remedy(name, launcher)}"


def remedy(name: str, launcher: str) -> str:
    """How to give all ranks the same variable, under this launcher (Identity.launcher; "" for one that is not known)."""
    own = "set it in every rank's environment"
    if launcher == "mpich":
        return f"mpirun -genv {name} VALUE, or {own}"
    if launcher == "srun":
        return f"srun --export=ALL,{name}=VALUE, or {own}"
    if launcher in ("torchrun", "horovodrun"):
        return f"{own}, on every host"
    return f"mpirun -x {name}, or {own}"
