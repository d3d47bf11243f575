"""Which backend serves each operation on each device type in this job, and who said so.

First hit wins: the argument of ``init()``, ``HOROVOD_BACKEND``, older variables, the user's plugins.toml, the site's, the
packaged one, automatic. A backend that was named is used or the job stops; only a list allows the next of its members,
because its author wrote a list. A backend that does not serve a device type governs nothing there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any

from hvd_core.backends import options
from hvd_core.backends.errors import BackendError, BackendNotInstalled, BackendUnavailable
from hvd_core.backends.messages import reason
from hvd_core.backends.plan import (
    AUTOMATIC,
    DEVICE_OPERATIONS,
    DevicePlan,
    Plan,
    Selection,
    Usable,
    Ways,
)
from hvd_core.backends.rules import ACCELERATORS, HOST, OPERATIONS, VARIABLE, Level, Rule, ladder
from hvd_core.backends.ways import OneHostOnly, host_ways, one_host_only, several_hosts
from hvd_core.config.plugins_toml import PluginsConfig

_log = logging.getLogger("horovod")
_said: set[str] = set()

Argument = str | type | Sequence[str | type] | None


def choose(
    environ: MutableMapping[str, str],
    config: PluginsConfig,
    world: Any = None,
    argument: Argument = None,
    allreduce: bool | None = None,
    allgather: bool | None = None,
) -> Plan:
    """Choose for a whole job.

    ``world`` is the job's World (``hosts``: host index of each rank, ``host_names``: one per rank, ``rank``); None stands
    for a job of one process. ``argument`` is what ``init(backend=...)`` was given: a name, a text in the syntax of
    HOROVOD_BACKEND, or a list of names; a subclass of PythonBackend stands for its name. ``allreduce``, ``allgather``:
    HOROVOD_HIERARCHICAL_ALLREDUCE and _ALLGATHER. What the files say about a backend that is asked for is set in
    ``environ``, where it is unset.

    Raises ValueError for texts and options that make no sense, and the BackendError of the first backend that was named
    and cannot be used.
    """
    from hvd_core.backends.stock import Stock

    levels = ladder(environ, with_names(argument), config.levels())
    stock = Stock(environ, config)
    plan = Choice(levels, stock, world, allreduce, allgather).plan()
    options.check(plan.backends(), environ, stock.names, config)
    return plan


def with_names(argument: Argument) -> str | Sequence[str] | None:
    """The argument of ``init(backend=...)`` with names instead of classes, which are registered by that."""
    if argument is None or isinstance(argument, str):
        return argument
    from hvd_core.backends.registering import register_python_backend

    if isinstance(argument, type):
        return register_python_backend(argument).name
    return [register_python_backend(a).name if isinstance(a, type) else a for a in argument]


class Choice:
    """One choice under way. ``stock`` gives backends by name (stock.Stock, or anything with its methods)."""

    def __init__(
        self,
        levels: Sequence[Level],
        stock: Any,
        world: Any = None,
        allreduce: bool | None = None,
        allgather: bool | None = None,
    ) -> None:
        self.levels, self.stock, self.world = levels, stock, world
        self.hierarchical = (allreduce, allgather)
        # A rule for everything leaves only what it names to be looked at.
        self.open = not any(rule.device is None for level in levels for rule in level.rules)

    def plan(self) -> Plan:
        """The whole table."""
        listed, source = self._host_list()
        embedded = self.stock.embedded() if self._needs_embedded(listed) else []
        if not listed:
            embedded = self._with_launchers_own(embedded)
        if not listed and not embedded:
            raise BackendUnavailable(
                "horovod: backend selection: nothing was named for host memory, and the backends of hvd-core itself "
                f"may not be used here: {self.stock.policy()}.\n"
                "  fix: name one that is allowed, in HOROVOD_BACKEND for instance, or ask whoever keeps that file\n"
                f"  installed: {self.stock.describe_installed()}"
            )
        ways = host_ways(
            listed,
            source,
            self.world,
            embedded,
            self.stock.describe_installed,
            *self.hierarchical,
        )
        routes = self._host_routes(ways)
        devices = self._devices(Plan(ways, routes))
        self._tell_legacy_without_effect([d.type for d in devices])
        return Plan(ways, routes, devices, self._note(), self.stock.unused_between)

    # Host memory.

    def _needs_embedded(self, listed: Sequence[Usable]) -> bool:
        return not listed or (several_hosts(self.world) and any(self.hierarchical))

    def _with_launchers_own(self, embedded: list[Usable]) -> list[Usable]:
        """Before the embedded backend that reaches across hosts, those that belong to the jobs of this one's launcher. On
        one host nobody looks for them."""
        if not several_hosts(self.world):
            return embedded
        near = [b for b in embedded if not b.spans_hosts]
        own = [b for b in self.stock.of_launcher(self.world.launcher) if HOST in b.serves and b.spans_hosts]
        return [*near, *own, *(b for b in embedded if b.spans_hosts)]

    def _host_list(self) -> tuple[list[Usable], str]:
        """What was named for host memory as a whole, in order of preference; [] for nothing."""
        for level, rule in self._rules(HOST, None):
            found = [b for b in self._of(rule, level, HOST) if HOST in b.serves]
            if found:
                return found, rule.source
            if rule.device == HOST and not level.soft:
                raise self._does_not_serve(rule, HOST)
        return [], AUTOMATIC

    def _host_routes(self, ways: Ways) -> dict[str, Selection]:
        """The operations for which another backend was named than for the rest."""
        routes = {}
        for operation in OPERATIONS:
            for level, rule in self._rules(HOST, operation):
                found = [b for b in self._of(rule, level, HOST) if HOST in b.serves]
                if rule.operation is None:
                    if found:
                        break  # governed by what governs the rest
                    continue
                if not found and level.soft:
                    continue
                if not found:
                    raise self._does_not_serve(rule, HOST)
                reaching = [b for b in found if b.spans_hosts or not several_hosts(self.world)]
                if not reaching:
                    raise self._one_host(found[0], rule)
                routes[operation] = Selection(reaching[0], rule.source)
                break
        main = ways.backends("")
        alike = len(main) == 1 and not ways.hierarchical
        return {o: s for o, s in routes.items() if not (alike and s.name == main[0].name)}

    # Device memory.

    def _devices(self, host: Plan) -> tuple[DevicePlan, ...]:
        plans = []
        for device in self._types():
            table = self._table(device, ())
            if table is None:
                self._refuse_if_named(device)
                continue
            routes: dict[str, Usable] = {}
            sources: dict[str, str] = {}
            for operation in DEVICE_OPERATIONS:
                route, sources[operation] = self._route(device, operation, host)
                if route is not None:
                    routes[operation] = route
            # Who moves the data also opens the device, where it can.
            plans.append(DevicePlan(device, self._table(device, routes.values()) or table, routes, sources))
        return tuple(plans)

    def _types(self) -> list[str]:
        """Device types that were named, that named backends serve, or that installed ones do where nothing was named."""
        types: dict[str, None] = {}
        for level in self.levels:
            for rule in level.rules:
                if not rule.broad and rule.device != HOST:
                    types[str(rule.device)] = None
                elif rule.broad:
                    for backend in self._of(rule, level, None):
                        types |= dict.fromkeys(_device_types(backend))
        if self.open:
            for backend in self.stock.for_devices():
                types |= dict.fromkeys(_device_types(backend))
        return list(types)

    def _route(self, device: str, operation: str, host: Plan) -> tuple[Usable | None, str]:
        """The backend whose communicator reads the device's memory, None for staging; and who said so."""
        for level, rule in self._rules(device, operation):
            found = self._of(rule, level, device)
            direct = [b for b in found if device in b.serves]
            reaching = [b for b in direct if b.spans_hosts or not several_hosts(self.world)]
            if reaching:
                return reaching[0], rule.source
            if direct and not level.soft:
                raise self._one_host(direct[0], rule)
            if any(b.table == device for b in found):
                return None, rule.source
            if rule.device == device:
                return self._staged_over(found, rule, operation, host), rule.source
        if self.open:
            for backend in self.stock.for_devices():
                if device in backend.serves and (backend.spans_hosts or not several_hosts(self.world)):
                    return backend, AUTOMATIC
        return None, AUTOMATIC

    def _staged_over(self, found: list[Usable], rule: Rule, operation: str, host: Plan) -> Usable | None:
        """A rule names a backend of host memory for a device type: the data are copied through host memory and go over
        that backend. None where host memory goes over it anyway, on one level or two."""
        used = {b.name for b in host.host_cell(operation).backends}
        if any(b.name in used for b in found):
            return None
        named = [b for b in found if HOST in b.serves]
        if not named:
            raise self._does_not_serve(rule, str(rule.device))
        reaching = [b for b in named if b.spans_hosts or not several_hosts(self.world)]
        if not reaching:
            raise self._one_host(named[0], rule)
        return reaching[0]

    def _table(self, device: str, routes: Iterable[Usable]) -> Usable | None:
        """The backend that opens the devices: one that moves their data, else one that was named, else any."""
        for backend in (*routes, *self._named()):
            if backend.table == device:
                return backend
        return next((b for b in self.stock.for_devices() if b.table == device), None)

    def _refuse_if_named(self, device: str) -> None:
        for level in self.levels:
            for rule in level.rules:
                if rule.device == device and not level.soft:
                    raise BackendUnavailable(
                        f"horovod: {rule.source} names a backend for device type '{device}', and no backend that may be "
                        f"used opens such devices.\n"
                        f"  installed: {self.stock.describe_installed()}\n"
                        f"  fix: install the backend that has '{device}' devices, or correct the name      "
                        "list: hvd plugin list"
                    )

    def _note(self) -> str:
        """Why a device type is not served, and what to do: the engine says it when a tensor of such a type comes."""
        if not self.open:
            rule = next(r for level in self.levels for r in level.rules if r.device is None)
            names = ", ".join(rule.names)
            fix = "name a backend for the device type as well"
            if rule.source == VARIABLE:
                fix += f": HOROVOD_BACKEND={','.join(rule.names)},DEVICE=NAME"
            return (
                f"{rule.source} names {names} for everything, so that no other backend was looked for; "
                f"to change that, {fix}"
            )
        unusable = [reason(error) for error in self.stock.unusable.values()]
        if unusable:
            return "; ".join(unusable)
        return f"no other backend that is installed serves device memory; installed: {self.stock.describe_installed()}"

    # Names.

    def _rules(self, device: str, operation: str | None) -> Iterator[tuple[Level, Rule]]:
        """What was said about an operation on a device type: by level, and within one the most specific first."""
        for level in self.levels:
            for rule in level.rules_for(device, operation):
                yield level, rule

    def _named(self) -> list[Usable]:
        return [b for level in self.levels for rule in level.rules for b in self._of(rule, level, None)]

    def _of(self, rule: Rule, level: Level, device: str | None) -> list[Usable]:
        """The usable ones of a rule's names, in order. One name that is not usable is an error, or a warning on a soft
        level; of a list, an error when none is usable, else a warning for those that come before one that serves
        ``device``."""
        found: list[Usable] = []
        failed: list[tuple[int, BackendError]] = []
        for position, name in enumerate(rule.names):
            try:
                backend = self.stock.usable(name, rule.source, len(rule.names) == 1)
                if level.soft:
                    self._check_launcher(backend)
                found.append(backend)
            except BackendError as error:
                failed.append((position, error))
        if level.soft:
            for _, error in failed:
                self._warn_once(_skipped(rule, error, self.stock))
            return self._of_legacy(rule, found)
        if not found:
            raise failed[0][1]
        serving = [b for b in found if device is not None and (device in b.serves or b.table == device)]
        if serving:
            place = rule.names.index(serving[0].name)
            for position, error in failed:
                if position < place:
                    self._warn_once(
                        f"horovod: {reason(error)}. Using '{serving[0].name}', the next that {rule.source} lists."
                    )
        return found

    def _check_launcher(self, backend: Usable) -> None:
        """What an image's variable names must not end a job that was started in a way in which it cannot work."""
        world = self.world
        if world is None or len(world.hosts) == 1 or not backend.launchers:
            return
        if world.launcher not in backend.launchers:
            raise BackendUnavailable(
                f"horovod: backend '{backend.name}' ({backend.origin}) works in jobs that are started by "
                f"{_either(backend.launchers)}, and this one was started by {world.launcher}"
            )

    def _of_legacy(self, rule: Rule, found: list[Usable]) -> list[Usable]:
        """For HOROVOD_GPU_*, backends that serve accelerators; what else is named there is left over from elsewhere."""
        if rule.device != ACCELERATORS:
            return found
        for backend in found:
            if not _device_types(backend):
                self._warn_once(
                    f"horovod: {rule.source}={backend.name} is ignored: the backend serves "
                    f"{', '.join(sorted(backend.serves)) or 'nothing'} only, no other device type. "
                    "Unset the variable, or name a backend for the device type in HOROVOD_BACKEND."
                )
        return [b for b in found if _device_types(b)]

    def _tell_legacy_without_effect(self, types: Sequence[str]) -> None:
        """HOROVOD_GPU_*, of a backend for other accelerators than this job has."""
        for level in self.levels:
            for rule in level.rules if level.soft and types else ():
                found = self._of(rule, level, None) if rule.device == ACCELERATORS else []
                if found and not any(set(_device_types(b)) & set(types) for b in found):
                    self._warn_once(
                        f"horovod: {rule.source}={found[0].name} is ignored: the backend serves "
                        f"{', '.join(_device_types(found[0]))}, and the devices here are {', '.join(types)}."
                    )

    def _does_not_serve(self, rule: Rule, device: str) -> BackendError:
        backend = self._of(rule, Level("", (rule,)), None)[0]
        serves = ", ".join(sorted(backend.serves | {backend.table or HOST} - {HOST})) or "nothing"
        what = "host memory (cpu)" if device == HOST else f"memory of '{device}'"
        return BackendError(
            f"horovod: backend '{backend.name}' (from {rule.source}) does not serve {what}; it serves: {serves}.\n"
            "  Not falling back, because it was named for that explicitly.\n"
            f"  fix: name another for {device}, or leave {device} out      show: hvd plugin show {backend.name}"
        )

    def _one_host(self, backend: Usable, rule: Rule) -> OneHostOnly:
        alone = len(rule.names) == 1
        return one_host_only(backend, rule.source, self.world, self.stock.describe_installed(), alone)

    def _warn_once(self, text: str) -> None:
        # Every rank comes to the same conclusion; one of them says it.
        if text not in _said and (self.world is None or self.world.rank == 0):
            _said.add(text)
            _log.warning("%s", text)


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _device_types(backend: Usable) -> list[str]:
    return sorted((backend.serves | {backend.table or HOST}) - {HOST})


def _skipped(rule: Rule, error: BackendError, stock: Any) -> str:
    """The one line about an older variable that names what cannot be used."""
    if type(error) is BackendNotInstalled:
        why = f"no backend of that name is installed. installed: {stock.describe_installed()}"
    else:
        why = f"{reason(error)}."
    return f"horovod: {rule.source}={rule.names[0]} is ignored: {why}"


__all__ = ["Choice", "Plan", "Selection", "choose", "with_names"]
