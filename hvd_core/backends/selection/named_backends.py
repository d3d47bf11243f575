"""The usable backends that rules name, and warnings about names that are passed over. Used by the choice of a job's
backends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from hvd_core._config.selection_rules import ACCELERATORS, HOST, Level, Rule
from hvd_core.backends.errors import BackendError, BackendNotInstalled, BackendUnavailable
from hvd_core.backends.messages import reason
from hvd_core.backends.selection.backend_plan import Usable

_log = logging.getLogger("horovod")
_warned: set[str] = set()


class NamedBackends:
    """``backends``: finds backends by name; a UsableBackends, or an object with its methods. ``world``: the job's
    World, or None."""

    def __init__(self, levels: Sequence[Level], backends: Any, world: Any) -> None:
        self._levels, self._backends, self._world = levels, backends, world

    def all(self) -> list[Usable]:
        """Those of all rules."""
        return [b for level in self._levels for rule in level.rules for b in self.of(rule, level, None)]

    def of(self, rule: Rule, level: Level, device: str | None) -> list[Usable]:
        """The usable backends of a rule, in order.

        If the rule has one name and it cannot be used, that is an error; on a soft level, a warning. If it has a list,
        the call fails only if no backend can be used; otherwise it warns of the unusable names before the first backend
        that serves ``device``."""
        found: list[Usable] = []
        failed: list[tuple[int, BackendError]] = []
        for position, name in enumerate(rule.names):
            try:
                backend = self._backends.usable(name, rule.source, len(rule.names) == 1)
                if level.soft:
                    self._check_launcher(backend)
                found.append(backend)
            except BackendError as error:
                failed.append((position, error))
        if level.soft:
            for _, error in failed:
                self._warn_once(_skipped(rule, error, self._backends))
            return self._of_legacy(rule, found)
        if not found:
            raise failed[0][1]
        serving = [b for b in found if device is not None and (device in b.serves or b.table == device)]
        if serving:
            place = rule.names.index(serving[0].name)
            for position, error in failed:
                if position < place:
                    self._warn_once(
                        f"horovod: {reason(error)}. Using '{serving[0].name}', the next backend in {rule.source}."
                    )
        return found

    def _check_launcher(self, backend: Usable) -> None:
        """Raise BackendUnavailable if the backend does not work in jobs of this job's launcher. A variable that an image
        exports must not end a job for this reason; only soft levels call this."""
        world = self._world
        if world is None or len(world.hosts) == 1 or not backend.launchers:
            return
        if world.launcher not in backend.launchers:
            raise BackendUnavailable(
                f"horovod: backend '{backend.name}' ({backend.origin}) works in jobs that are started by "
                f"{_either(backend.launchers)}, and this one was started by {world.launcher}"
            )

    def _of_legacy(self, rule: Rule, found: list[Usable]) -> list[Usable]:
        """The backends of ``found`` that a rule of an older variable may use: for HOROVOD_GPU_*, those that serve a
        device type other than host memory. Warns of the others."""
        if rule.device != ACCELERATORS:
            return found
        for backend in found:
            if not device_types(backend):
                serves = ", ".join(sorted(backend.serves)) or "nothing"
                self._warn_once(
                    _not_followed(
                        rule,
                        f"the backend serves {serves} only, no other device type. "
                        "Unset the variable, or name a backend for the device type in HOROVOD_BACKEND.",
                        backend.name,
                    )
                )
        return [b for b in found if device_types(b)]

    def without_kept(self, rule: Rule, found: list[Usable]) -> list[Usable]:
        """The backends of ``found``, which an older variable names, without those that are kept within hosts although
        they could reach others. Warns of these. For a job on several hosts."""
        for backend in found:
            if backend.kept_within:
                why = f"the backend {backend.kept_within}, and this job has several hosts."
                self._warn_once(_not_followed(rule, why, backend.name))
        return [b for b in found if not b.kept_within]

    def warn_of_unused_legacy(self, types: Sequence[str]) -> None:
        """Warn if HOROVOD_GPU_* names a backend for other accelerators than this job's device types ``types``."""
        for level in self._levels:
            for rule in level.rules if level.soft and types else ():
                found = self.of(rule, level, None) if rule.device == ACCELERATORS else []
                if found and not any(set(device_types(b)) & set(types) for b in found):
                    serves, here = ", ".join(device_types(found[0])), ", ".join(types)
                    why = f"the backend serves {serves}, and the devices here are {here}."
                    self._warn_once(_not_followed(rule, why, found[0].name))

    def _warn_once(self, text: str) -> None:
        # Every rank comes to the same conclusion; rank 0 reports it.
        if text not in _warned and (self._world is None or self._world.rank == 0):
            _warned.add(text)
            _log.warning("%s", text)


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def device_types(backend: Usable) -> list[str]:
    """The types of devices that a backend serves or opens, without host memory."""
    return sorted((backend.serves | {backend.table or HOST}) - {HOST})


def _skipped(rule: Rule, error: BackendError, backends: Any) -> str:
    """The warning that an older variable names a backend that cannot be used."""
    if type(error) is BackendNotInstalled:
        why = f"no backend of that name is installed. installed: {backends.describe_installed()}."
    else:
        why = f"{reason(error)}."
    return _not_followed(rule, why, rule.names[0])


def _not_followed(rule: Rule, why: str, name: str) -> str:
    """The warning that an older variable names the backend ``name``, which does not serve. HOROVOD_GPU_* still forbid the
    copy through host memory (BackendPlan.named_for_devices), so these variables are not ignored."""
    if rule.device != ACCELERATORS:
        return f"horovod: {rule.source}={name} is ignored: {why}"
    return (
        f"horovod: {rule.source}={name} cannot be followed: {why} While the variable is set, tensors on devices that "
        "no backend serves are refused; otherwise they would be copied through host memory."
    )
