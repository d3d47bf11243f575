"""The settings of a job as programs pass them on. hvd-core's own launcher does not read them. Any thread."""

from typing import Any

from horovod.runner.common.util.timeout import Timeout

__all__ = ["BaseSettings", "Settings"]


class BaseSettings:
    """A record of a launcher's options. Other names are kept as attributes as well.

    Args:
        num_proc: the number of ranks.
        verbose: 0, 1 or 2.
        key: the secret of the job, see `secret`.
        start_timeout: seconds, or a Timeout, until all ranks must have started.
        nics: names of network interfaces.
    """

    def __init__(
        self,
        num_proc: int | None = None,
        verbose: int = 0,
        ssh_port: int | None = None,
        ssh_identity_file: str | None = None,
        extra_mpi_args: str | None = None,
        tcp_flag: bool | None = None,
        binding_args: str | None = None,
        key: bytes | None = None,
        start_timeout: float | Timeout | None = None,
        output_filename: str | None = None,
        run_func_mode: bool | None = None,
        nics: set[str] | None = None,
        elastic: bool = False,
        prefix_output_with_timestamp: bool = False,
        **others: Any,
    ) -> None:
        given = {
            name: value for name, value in locals().items() if name not in ("self", "others", "__class__")
        }
        vars(self).update(given, **others)


class Settings(BaseSettings):
    """BaseSettings of a job whose hosts are known: `hosts` is "h1:2,h2:4", `num_hosts` their number."""

    def __init__(self, num_hosts: int | None = None, hosts: str | None = None, **others: Any) -> None:
        super().__init__(num_hosts=num_hosts, hosts=hosts, **others)
