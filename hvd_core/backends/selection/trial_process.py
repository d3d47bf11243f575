"""The process of a trial (trial.py): takes one backend through its phases and reports them. The process's only thread."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
from typing import Any

from hvd_core._config.plugins_toml import load
from hvd_core.backends import phases
from hvd_core.backends.errors import BackendError
from hvd_core.backends.messages import of_exception
from hvd_core.backends.selection.usable_backends import UsableBackends, score


def run(name: str, written: int, caller: int) -> None:
    """Take the backend through its phases, and write a line of JSON to ``written`` for each. Ends with ``caller``.
    Exit handlers are not run: a plugin's may crash or hang too."""

    def tell(report: dict[str, Any]) -> None:
        os.write(written, json.dumps(report).encode() + b"\n")

    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != caller:
            os._exit(1)  # the caller died before the line above took effect
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        phases.listen(lambda now: tell({"running": now and now[1]}))
        score(UsableBackends(os.environ, load(os.environ), is_trial=True).usable(name, "automatic"))
        tell({"passed": True})
    except BackendError as error:
        tell({"error": type(error).__name__, "text": str(error)})
    except BaseException as error:
        tell({"error": "", "text": f"horovod: backend '{name}' is not used: it raised {of_exception(error)}"})
    os._exit(0)
