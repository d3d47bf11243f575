"""Chooses the backend for each operation on each device type of a job, and records the source of each choice.

The first source with a usable answer wins: the argument of ``init()``, ``HOROVOD_BACKEND``, older variables, the user's
plugins.toml, the site's, the packaged one, automatic. A named backend is used, or the job stops. Only a list falls back
to its next member. A named backend decides nothing for device types that it does not serve.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from hvd_core._config.plugins_toml import PluginsConfig
from hvd_core._config.selection_rules import (
    ACCELERATORS,
    ARGUMENT,
    HOST,
    OF_SET,
    OPERATIONS,
    VARIABLE,
    Level,
    Rule,
    ladder,
)
from hvd_core.backends.errors import BackendError, BackendUnavailable
from hvd_core.backends.messages import reason
from hvd_core.backends.selection import backend_options
from hvd_core.backends.selection.backend_plan import (
    AUTOMATIC,
    DEVICE_OPERATIONS,
    BackendPlan,
    DeviceRoutes,
    HostRoute,
    Selection,
    Usable,
)
from hvd_core.backends.selection.host_route import (
    OneHostOnly,
    choose_host_route,
    homogeneous,
    one_host_only,
    several_hosts,
)
from hvd_core.backends.selection.named_backends import NamedBackends, device_types
from hvd_core.backends.selection.usable_backends import UsableBackends

_log = logging.getLogger("horovod")

Argument = str | type | Sequence[str | type] | None


def choose(
    environ: MutableMapping[str, str],
    config: PluginsConfig,
    world: Any = None,
    argument: Argument = None,
    allreduce: bool | None = None,
    allgather: bool | None = None,
    called: str = ARGUMENT,
) -> BackendPlan:
    """The plan for a whole job, or for a process set. The arguments and exceptions are those of choice_for()."""
    return choice_for(environ, config, world, argument, allreduce, allgather, called)[1]


def choice_for(
    environ: MutableMapping[str, str],
    config: PluginsConfig,
    world: Any = None,
    argument: Argument = None,
    allreduce: bool | None = None,
    allgather: bool | None = None,
    called: str = ARGUMENT,
) -> tuple[Choice, BackendPlan]:
    """Choose for a whole job, or for a process set. The Choice also answers for device types that no rule names.

    ``world``: the job's World (``hosts``: host index of each rank, ``host_names``: one per rank, ``rank``), or None for a
    job of one process. ``argument``: the argument of ``init(backend=...)``: a name, a text in the syntax of
    HOROVOD_BACKEND, or a list of names; a subclass of PythonBackend stands for its name. ``called``: its name in
    messages. ``allreduce``, ``allgather``: HOROVOD_HIERARCHICAL_ALLREDUCE and _ALLGATHER. The files' settings of a
    backend are written to ``environ`` before the backend is used, unless the variable is set already.

    Raises ValueError for texts and options that cannot be read, and the BackendError of the first named backend that
    cannot be used.
    """
    levels = ladder(environ, with_names(argument), config.levels(), called)
    types = {rule.device for level in levels for rule in level.rules} - {None, ACCELERATORS, HOST}
    backends = UsableBackends(environ, config, frozenset(map(str, types)))
    choice = Choice(levels, backends, world, allreduce, allgather)
    plan = choice.plan()
    backend_options.check(plan.backends(), environ, backends.names, config)
    return choice, plan


def with_names(argument: Argument) -> str | Sequence[str] | None:
    """The argument of ``init(backend=...)`` with names in place of classes. Registers the classes."""
    if argument is None or isinstance(argument, str):
        return argument
    from hvd_core.backends.discovery.registering import register_python_backend  # imports NumPy

    if isinstance(argument, type):
        return register_python_backend(argument).name
    return [register_python_backend(a).name if isinstance(a, type) else a for a in argument]


class Choice:
    """Makes one choice. ``backends``: finds backends by name; a UsableBackends, or an object with its methods."""

    def __init__(
        self,
        levels: Sequence[Level],
        backends: Any,
        world: Any = None,
        allreduce: bool | None = None,
        allgather: bool | None = None,
    ) -> None:
        self.levels, self.backends, self.world = levels, backends, world
        self.named = NamedBackends(levels, backends, world)
        self.hierarchical = (allreduce, allgather)
        self._told: set[str] = set()
        # After a rule for everything, only the backends that it names are considered.
        self.open = not any(rule.device is None for level in levels for rule in level.rules)

    def plan(self) -> BackendPlan:
        """The plan of the whole job: host memory, and the device types that rules name."""
        listed, source = self._host_list()
        embedded = self.backends.embedded() if self._needs_embedded(listed) else []
        if not listed:
            embedded = self._with_launcher_backends(embedded)
        if not listed and not embedded:
            raise BackendUnavailable(
                "horovod: backend selection: no backend was named for host memory, and the backends of hvd-core itself "
                f"may not be used here: {self.backends.policy()}.\n"
                "  fix: name an allowed backend, in HOROVOD_BACKEND for instance, or ask the administrator of that file\n"
                f"  installed: {self.backends.describe_installed()}"
            )
        host_route = choose_host_route(
            listed,
            source,
            self.world,
            embedded,
            self.backends.describe_installed,
            *self.hierarchical,
        )
        overrides = self._host_overrides(host_route)
        devices = self._devices(BackendPlan(host_route, overrides))
        self.named.warn_of_unused_legacy([d.type for d in devices])
        return BackendPlan(
            host_route,
            overrides,
            devices,
            self._note(),
            self.backends.unused_between,
            self._named_for_devices(),
        )

    def automatic(self, device: str, plan: BackendPlan) -> DeviceRoutes | None:
        """The routes of a device type that no rule of the job names, for ``plan``; None: no backend serves it, and
        why_not() tells why. May run the code of plugins. Raises the BackendError of a rule for the type."""
        if not self.open:
            return None
        routes = self._routes_of(device, plan)
        if routes is not None:
            self.named.warn_of_unused_legacy([*(d.type for d in plan.devices), device])
        return routes

    def with_devices_here(self, plan: BackendPlan) -> BackendPlan:
        """``plan`` with the device types of this machine, as if a tensor of each had come."""
        why = []
        for device in self.backends.device_types() if self.open else ():
            if any(d.type == device for d in plan.devices):
                continue
            found = self.automatic(device, plan)
            if found is None:
                why.append(self.why_not())
            else:
                plan = replace(plan, devices=(*plan.devices, found))
        return replace(plan, note=plan.note or "; ".join(dict.fromkeys(why)) or self.why_not())

    def why_not(self) -> str:
        """Why no backend serves a device type, after automatic()."""
        if not self.open:
            return self._note()
        unusable = [reason(error) for error in self.backends.unusable.values()]
        if unusable:
            return "; ".join(unusable)
        return f"no other backend that is installed serves device memory; installed: {self.backends.describe_installed()}"

    # Host memory.

    def _needs_embedded(self, listed: Sequence[Usable]) -> bool:
        return not listed or (several_hosts(self.world) and any(self.hierarchical))

    def _with_launcher_backends(self, embedded: list[Usable]) -> list[Usable]:
        """``embedded``, with the backends that belong to the jobs of this job's launcher in front of the embedded backend
        that reaches across hosts. On one host, or after Slurm's process manager was used up, they are not searched."""
        if not several_hosts(self.world) or self.world.launcher_used_up:
            return embedded
        within_hosts = [b for b in embedded if not b.spans_hosts]
        of_launcher = [
            b for b in self.backends.of_launcher(self.world.launcher) if HOST in b.serves and b.spans_hosts
        ]
        return [*within_hosts, *of_launcher, *(b for b in embedded if b.spans_hosts)]

    def _host_list(self) -> tuple[list[Usable], str]:
        """(the backends that were named for all of host memory, in order of preference; the source). The list may be
        empty."""
        for level, rule in self._rules(HOST, None):
            found = self._named_for_host(rule, level)
            if found:
                return found, rule.source
            if rule.device == HOST and not level.soft:
                raise self._does_not_serve(rule, HOST)
        return [], AUTOMATIC

    def _named_for_host(self, rule: Rule, level: Level) -> list[Usable]:
        """The backends that a rule names, as far as they serve host memory in this job."""
        found = [b for b in self.named.of(rule, level, HOST) if HOST in b.serves]
        return self.named.without_kept(rule, found) if level.soft and several_hosts(self.world) else found

    def _host_overrides(self, host_route: HostRoute) -> dict[str, Selection]:
        """The operations on host memory for which a backend of their own was named."""
        routes = {}
        for operation in OPERATIONS:
            for level, rule in self._rules(HOST, operation):
                found = self._named_for_host(rule, level)
                if rule.operation is None:
                    if found:
                        break  # the same rule decides for the other operations
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
        main = host_route.backends("")
        flat = len(main) == 1 and not host_route.hierarchical
        return {
            o: s for o, s in routes.items() if not (flat and s.name == main[0].name) or s.source == OF_SET
        }

    # Device memory.

    def _devices(self, host: BackendPlan) -> tuple[DeviceRoutes, ...]:
        """``host``: a plan that has the routes of host memory only."""
        found = (self._routes_of(device, host) for device in self._types())
        return tuple(routes for routes in found if routes is not None)

    def _routes_of(self, device: str, host: BackendPlan) -> DeviceRoutes | None:
        table = self._table(device, ())
        if table is None:
            self._refuse_if_named(device)
            return None
        routes: dict[str, Usable] = {}
        sources: dict[str, str] = {}
        for operation in DEVICE_OPERATIONS:
            route, sources[operation] = self._route(device, operation, host)
            if route is not None:
                routes[operation] = route
        # The backend that moves the data also opens the device, if it can.
        table = self._table(device, routes.values()) or table
        within = self._within(device, routes.get("allreduce"), host)
        return DeviceRoutes(device, table, routes, sources, within)

    def _within(self, device: str, route: Usable | None, host: BackendPlan) -> Usable | None:
        """The backend that reduces on the device within hosts, if a large allreduce goes over two levels: with
        HOROVOD_HIERARCHICAL_ALLREDUCE=1 the one of the route; unless that is 0, one that works within hosts only."""
        wanted = self.hierarchical[0]
        if wanted is False or not several_hosts(self.world) or host.host_route.between is None:
            return None
        if not homogeneous(self.world) or len(set(self.world.hosts)) == len(self.world.hosts):
            return None
        if route is not None:
            return route if wanted and device in route.serves else None
        if not self.open:
            return None
        within = (b for b in self.backends.for_devices(device) if device in b.serves and not b.spans_hosts)
        return next(within, None)

    def _types(self) -> list[str]:
        """The device types that rules name and that named backends serve."""
        types: dict[str, None] = {}
        for level in self.levels:
            for rule in level.rules:
                if not rule.broad and rule.device != HOST:
                    types[str(rule.device)] = None
                elif rule.broad:
                    for backend in self.named.of(rule, level, None):
                        types |= dict.fromkeys(device_types(backend))
        return list(types)

    def _route(self, device: str, operation: str, host: BackendPlan) -> tuple[Usable | None, str]:
        """(the backend whose communicator reads the device's memory, None for staging; the source of the choice)."""
        for level, rule in self._rules(device, operation):
            found = self.named.of(rule, level, device)
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
            for backend in self.backends.for_devices(device):
                if device not in backend.serves:
                    continue
                if backend.spans_hosts or not several_hosts(self.world):
                    return backend, AUTOMATIC
                self._tell_of_copies(backend, device)
        return None, AUTOMATIC

    def _tell_of_copies(self, backend: Usable, device: str) -> None:
        """Says that data of devices are slower than they could be. All ranks know it; one speaks, once."""
        if not backend.kept_within or backend.name in self._told or self.world.rank != 0:
            return
        self._told.add(backend.name)
        _log.warning(
            "horovod: backend '%s' %s: tensors on '%s' are copied through host memory instead. On an encrypted network "
            "(WireGuard, IPsec) between the hosts HOROVOD_TLS is not needed.",
            backend.name,
            backend.kept_within,
            device,
        )

    def _staged_over(
        self, found: list[Usable], rule: Rule, operation: str, host: BackendPlan
    ) -> Usable | None:
        """The backend of host memory that a rule names for a device type: the data are copied through host memory, and
        that backend moves them. None if it is already the backend of host memory, on one level or two."""
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
        """The backend that opens the devices: one of ``routes``, else a named one, else any installed one; or None."""
        for backend in (*routes, *self.named.all()):
            if backend.table == device:
                return backend
        return next((b for b in self.backends.for_devices(device) if b.table == device), None)

    def _refuse_if_named(self, device: str) -> None:
        for level in self.levels:
            for rule in level.rules:
                if rule.device == device and not level.soft:
                    raise BackendUnavailable(
                        f"horovod: {rule.source} names a backend for device type '{device}', and no backend that may be "
                        f"used opens such devices.\n"
                        f"  installed: {self.backends.describe_installed()}\n"
                        f"  fix: install the backend that has '{device}' devices, or correct the name      "
                        "list: hvd plugin list"
                    )

    def _note(self) -> str:
        """Why other device types are not served, and what to do: the engine's message for a tensor of such a type. ""
        if a backend is looked for when such a tensor comes."""
        if not self.open:
            rule = next(r for level in self.levels for r in level.rules if r.device is None)
            names = ", ".join(rule.names)
            fix = "name a backend for the device type as well"
            if rule.source == VARIABLE:
                fix += f": HOROVOD_BACKEND={','.join(rule.names)},DEVICE=NAME"
            return (
                f"{rule.source} names {names} for everything, so no other backend was searched for; "
                f"to change that, {fix}"
            )
        return ""

    def _named_for_devices(self) -> str:
        rules = (rule for level in self.levels for rule in level.rules if rule.device == ACCELERATORS)
        return next((f"{rule.source} names the backend '{rule.names[0]}' for devices" for rule in rules), "")

    # Rules.

    def _rules(self, device: str, operation: str | None) -> Iterator[tuple[Level, Rule]]:
        """The rules for an operation on a device type: level by level, and the most specific rule of a level first."""
        for level in self.levels:
            for rule in level.rules_for(device, operation):
                yield level, rule

    def _does_not_serve(self, rule: Rule, device: str) -> BackendError:
        backend = self.named.of(rule, Level("", (rule,)), None)[0]
        serves = ", ".join(sorted(backend.serves | {backend.table or HOST} - {HOST})) or "nothing"
        what = "host memory (cpu)" if device == HOST else f"memory of '{device}'"
        return BackendError(
            f"horovod: backend '{backend.name}' (from {rule.source}) does not serve {what}; it serves: {serves}.\n"
            "  Not falling back, because it was named for that explicitly.\n"
            f"  fix: name another backend for {device}, or leave {device} out      show: hvd plugin show {backend.name}"
        )

    def _one_host(self, backend: Usable, rule: Rule) -> OneHostOnly:
        alone = len(rule.names) == 1
        return one_host_only(backend, rule.source, self.world, self.backends.describe_installed(), alone)


__all__ = ["BackendPlan", "Choice", "Selection", "choice_for", "choose", "with_names"]
