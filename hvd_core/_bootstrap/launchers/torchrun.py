"""torchrun, and programs that set the same general variables (RANK, WORLD_SIZE)."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_core._bootstrap.launchers.launcher import Launcher

# Names of processes that take over the ranks of a launcher that has ended, or start programs of all kinds.
_NO_AGENTS = frozenset(
    ("systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "containerd-shim", "conmon")
    + ("sshd", "su", "sudo", "sh", "bash", "dash", "zsh", "fish", "tmux", "tmux: server", "screen")
)


class Torchrun(Launcher):
    name = "torchrun"
    rank_variable, size_variable = "RANK", "WORLD_SIZE"
    local_variables = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    job_variables = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    variable_prefixes = ("TORCHELASTIC_",)
    command = "torchrun"
    process_names = frozenset(("torchrun",))
    never_starts_mpi = True
    not_elastic = (
        "torchrun started it, whose --max-restarts ends all processes when one dies and starts them again; the program "
        "must read a checkpoint then"
    )
    elastic_remedy = "horovodrun -np N --min-np M ... instead of torchrun, or read a checkpoint at the start"

    def is_set_by_hand(self, environ: Mapping[str, str]) -> bool:
        return "TORCHELASTIC_RUN_ID" not in environ

    def is_agent(self, process_name: str, environ: Mapping[str, str]) -> bool:
        # Its agent is a Python program, whose process may have any name.
        return not self.is_set_by_hand(environ) and process_name not in _NO_AGENTS

    def shown_process(self, process_name: str) -> str:
        return self.name
