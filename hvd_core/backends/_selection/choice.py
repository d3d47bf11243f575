"""Chooses the backend for each operation on each device type of a job, and records the source of each choice.

The first source with a usable answer wins: the argument of ``init()``, ``HOROVOD_BACKEND``, older variables, the user's
plugins.toml, the site's, the packaged one, automatic. A named backend is used, or the job stops. Only a list falls back
to its next member. A named backend decides nothing for device types that it does not serve.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
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
from hvd_core.backends._messages import reason
from hvd_core.backends._selection import options
from hvd_core.backends._selection.plan import (
    AUTOMATIC,
    DEVICE_OPERATIONS,
    BackendPlan,
    DeviceRoutes,
    HostRoute,
    Selection,
    Usable,
)
from hvd_core.backends._selection.usable import UsableBackends
from hvd_core.backends.errors import BackendError, BackendNotInstalled, BackendUnavailable
from hvd_core.types import COLLECTIVES

__all__ = [
    "BackendPlan",
    "Choice",
    "HostRoute",
    "OneHostOnly",
    "Selection",
    "choice_for",
    "choose",
    "choose_host_route",
    "homogeneous",
    "one_host_only",
    "several_hosts",
    "spread",
    "with_names",
]


# The route of host memory. On one host the chosen backend serves everything. On several hosts, a backend that reaches
# across hosts either connects all ranks ("flat"), or connects hosts while another backend works within each host
# ("hierarchical"). Pure functions of the choice and of values that all ranks share.


class OneHostOnly(BackendUnavailable):
    """The named backend cannot reach all hosts of the job. In a list it may still serve within hosts."""


def choose_host_route(
    listed: Sequence[Usable],
    source: str,
    world: Any,
    embedded: Sequence[Usable],
    installed: Callable[[], str],
    allreduce: bool | None = None,
    allgather: bool | None = None,
) -> HostRoute:
    """The route over the backends ``listed`` for host memory, in order of preference; if the list is empty, over the
    ``embedded`` ones.

    ``source``: where the list comes from. ``allreduce`` and ``allgather``: HOROVOD_HIERARCHICAL_ALLREDUCE and
    _ALLGATHER. For None (unset) the operation is hierarchical if no backend was named, or if the list names a backend
    that works within a host before a backend that reaches across hosts. ``installed``: returns the list of installed
    backends for messages.

    Raises BackendUnavailable if no backend reaches all hosts of the job.
    """
    automatic = not listed
    names = list(listed or embedded)
    if not several_hosts(world):
        chosen = Selection(names[0], source if listed else AUTOMATIC)
        return HostRoute(None, chosen) if names[0].spans_hosts else HostRoute(chosen, None)

    between = next((b for b in names if b.spans_hosts), None)
    if between is None:
        if listed:
            # The reason why a backend is kept within hosts tells more than the nature of another one.
            refused = next((b for b in names if b.kept_within), names[0])
            raise one_host_only(refused, source, world, installed(), alone=len(names) == 1)
        raise BackendUnavailable(
            f"horovod: backend selection: {spread(world)}, and no backend that may be used reaches across hosts.\n"
            f"  installed: {installed()}\n"
            "  fix: run all ranks on one host, or install a backend that works between hosts\n"
            "  list: hvd plugin list"
        )
    outer = Selection(between, AUTOMATIC if automatic else source)
    inner = [
        b for b in names[: names.index(between)] if not b.spans_hosts and not _leaves_ranks_out(b, world)
    ]
    # The order of the list, or of the automatic choice, decides whether there are two levels.
    two_levels = bool(inner)
    within = inner[0] if inner else next((b for b in embedded if not b.spans_hosts), None)
    variables = {"allreduce": allreduce, "reduce": allreduce, "allgather": allgather}
    hierarchical = tuple(c for c in COLLECTIVES if (two_levels if variables.get(c) is None else variables[c]))
    if within is None or within.name == between.name or not hierarchical:
        return HostRoute(None, outer)
    if between.launchers and not homogeneous(world):
        # With two levels, a rank whose local rank exceeds the smallest host's size takes no part between hosts. It
        # would never start the launcher's library, which starts on all ranks together.
        return HostRoute(None, outer)
    return HostRoute(Selection(within, outer.source), outer, hierarchical, within_alone=two_levels)


def _leaves_ranks_out(backend: Usable, world: Any) -> bool:
    """Whether some ranks, those that are alone on their host, would never start the launcher's library that ``backend``
    needs. It starts on all ranks together, or waits for ever."""
    return bool(backend.launchers) and 1 in Counter(world.hosts).values()


def several_hosts(world: Any) -> bool:
    """Whether the job's ranks are on more than one host. ``world`` is None for a job of one process."""
    return world is not None and len(set(world.hosts)) > 1


def homogeneous(world: Any) -> bool:
    """Whether all hosts have the same number of ranks."""
    return len(set(Counter(world.hosts).values())) == 1


def spread(world: Any) -> str:
    """``this job spans 2 hosts (alpha, beta)``."""
    names = list(dict.fromkeys(world.host_names))
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"this job spans {len(set(world.hosts))} hosts ({shown})"


def one_host_only(backend: Usable, source: str, world: Any, installed: str, alone: bool) -> OneHostOnly:
    """The error for a named backend that does not reach across hosts. ``alone``: whether no other name was given."""
    strict = "  Not falling back, because it was named explicitly.\n" if alone else ""
    return OneHostOnly(
        f"horovod: backend '{backend.name}' (from {source}) {backend.kept_within or 'works within one host'}, "
        f"{'and' if backend.kept_within else 'but'} {spread(world)}.\n"
        f"{strict}  fix: name one that reaches across hosts, tcp for instance, or run all ranks on one host\n"
        f"  installed: {installed}"
    )


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
            for _, fault in failed:
                self._warn_once(_skipped(rule, fault, self._backends))
            return self._of_legacy(rule, found)
        if not found:
            raise failed[0][1]
        serving = [b for b in found if device is not None and (device in b.serves or b.table == device)]
        if serving:
            place = rule.names.index(serving[0].name)
            for position, fault in failed:
                if position < place:
                    self._warn_once(
                        f"horovod: {reason(fault)}. Using '{serving[0].name}', the next backend in {rule.source}."
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

    ``world``: the job's World (``hosts``: host index of each rank, ``host_names``: one per rank, ``rank``), or None
    for a job of one process. ``argument``: the argument of ``init(backend=...)``: a name, a text in the syntax of
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
    options.check(plan.backends(), environ, backends.names, config)
    return choice, plan


def with_names(argument: Argument) -> str | Sequence[str] | None:
    """The argument of ``init(backend=...)`` with names in place of classes. Registers the classes."""
    if argument is None or isinstance(argument, str):
        return argument
    from hvd_core.backends._discovery.registry import register_python_backend  # imports NumPy

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
