"""Chooses the backend for each operation on each device type of a job, and records the source of each choice.

The first source with a usable answer wins: the argument of ``init()``, ``HOROVOD_BACKEND``, older variables, the user's
plugins.toml, the site's, the packaged one, automatic. A named backend is used, or the job stops. Only a list falls back
to its next member. A named backend decides nothing for device types that it does not serve.
"""

from __future__ import annotations

import logging
from collections import Counter
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
from hvd_core._config.settings import read
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

Argument = str | type | Sequence[str | type] | None
_log = logging.getLogger("horovod")
_warned: set[str] = set()


class OneHostOnly(BackendUnavailable):
    """The named backend cannot reach all hosts of the job. In a list it may still serve within hosts."""


def choose(
    environ: MutableMapping[str, str],
    config: PluginsConfig,
    world: Any = None,
    argument: Argument = None,
    allreduce: bool | None = None,
    allgather: bool | None = None,
    called: str = ARGUMENT,
) -> BackendPlan:
    """The plan for a whole job, or for a process set.

    ``world``: the job's World (``hosts``: host index of each rank, ``host_names``: one per rank, ``rank``), or None
    for a job of one process. ``argument``: the argument of ``init(backend=...)``: a name, a text in the syntax of
    HOROVOD_BACKEND, or a list of names; a subclass of PythonBackend stands for its name. ``allreduce``,
    ``allgather``: in place of HOROVOD_HIERARCHICAL_ALLREDUCE and _ALLGATHER. ``called``: the argument's name in messages.
    The files' settings of a backend are written to ``environ`` before the backend is used, unless the variable
    is set already.

    Raises ValueError for texts and options that cannot be read, and the BackendError of the first named backend that
    cannot be used.
    """
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
    """As choose(), with the Choice, which also answers for device types that no rule names."""
    levels = ladder(environ, _with_names(argument), config.levels(), called)
    types = {rule.device for level in levels for rule in level.rules} - {None, ACCELERATORS, HOST}
    backends = UsableBackends(environ, config, frozenset(map(str, types)))
    if allreduce is None:
        allreduce = read("HOROVOD_HIERARCHICAL_ALLREDUCE", environ)
    if allgather is None:
        allgather = read("HOROVOD_HIERARCHICAL_ALLGATHER", environ)
    choice = Choice(levels, backends, world, allreduce, allgather)
    plan = choice.plan()
    options.check(plan.backends(), environ, backends.names)
    return choice, plan


def _with_names(argument: Argument) -> str | Sequence[str] | None:
    """The argument of ``init(backend=...)`` with names in place of classes. Registers the classes."""
    if argument is None or isinstance(argument, str):
        return argument
    from hvd_core.backends._discovery.registry import register_python_backend  # imports NumPy

    if isinstance(argument, type):
        return register_python_backend(argument).name
    return [register_python_backend(a).name if isinstance(a, type) else a for a in argument]


def homogeneous(world: Any) -> bool:
    """Whether all hosts have the same number of ranks."""
    return len(set(Counter(world.hosts).values())) == 1


def device_types(backend: Usable) -> list[str]:
    """The types of devices that a backend serves or opens, without host memory."""
    return sorted((backend.serves | {backend.table or HOST}) - {HOST})


class Choice:
    """Makes one choice.

    ``backends``: finds backends by name; a UsableBackends, or an object with its methods. ``allreduce``, ``allgather``:
    HOROVOD_HIERARCHICAL_ALLREDUCE and _ALLGATHER.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        backends: Any,
        world: Any = None,
        allreduce: bool | None = None,
        allgather: bool | None = None,
    ) -> None:
        self.levels, self.backends, self.world = levels, backends, world
        self.allreduce, self.allgather = allreduce, allgather
        self.several_hosts = world is not None and len(set(world.hosts)) > 1
        # After a rule for everything, only the backends that it names are considered.
        self.open = not any(rule.device is None for level in levels for rule in level.rules)

    def plan(self) -> BackendPlan:
        """The plan of the whole job: host memory, and the device types that rules name."""
        listed, source = self._host_list()
        needs_embedded = not listed or (self.several_hosts and (self.allreduce or self.allgather))
        embedded = self.backends.embedded() if needs_embedded else []
        if not listed:
            embedded = self._with_launcher_backends(embedded)
        if not listed and not embedded:
            raise BackendUnavailable(
                "horovod: backend selection: no backend was named for host memory, and the backends of hvd-core itself "
                f"may not be used here: {self.backends.policy()}.\n"
                "  fix: name an allowed backend, in HOROVOD_BACKEND for instance, or ask the administrator of that file\n"
                f"  installed: {self.backends.describe_installed()}"
            )
        host_route = self._host_route(listed, source, embedded)
        overrides = self._host_overrides(host_route)
        host = BackendPlan(host_route, overrides)
        devices = (self._routes_of(device, host) for device in self._named_types())
        named = (r for level in self.levels for r in level.rules if r.device == ACCELERATORS)
        return BackendPlan(
            host_route,
            overrides,
            tuple(routes for routes in devices if routes is not None),
            self._note(),
            self.backends.unused_between,
            next((f"{r.source} names the backend '{r.names[0]}' for devices" for r in named), ""),
        )

    def automatic(self, device: str, plan: BackendPlan) -> DeviceRoutes | None:
        """The routes of a device type that no rule of the job names, for ``plan``; None: no backend serves it, and
        why_not() tells why. May run the code of plugins. Raises the BackendError of a rule for the type."""
        return self._routes_of(device, plan) if self.open else None

    def with_devices_here(self, plan: BackendPlan) -> BackendPlan:
        """``plan`` with the device types of this machine, as if a tensor of each had come."""
        why = []
        known = {device.type for device in plan.devices}
        for device in self.backends.device_types() if self.open else ():
            if device in known:
                continue
            found = self.automatic(device, plan)
            if found is None:
                why.append(self.why_not())
            else:
                plan = replace(plan, devices=(*plan.devices, found))
        return replace(plan, note=plan.note or "; ".join(dict.fromkeys(why)) or self.why_not())

    def why_not(self) -> str:
        """Why no backend serves a device type, after automatic()."""
        unusable = [reason(error) for error in self.backends.unusable.values()]
        if not self.open or unusable:
            return "; ".join(unusable) if self.open else self._note()
        return f"no other backend that is installed serves device memory; installed: {self.backends.describe_installed()}"

    # Host memory. On one host the chosen backend serves everything. On several hosts, a backend that reaches across hosts
    # either connects all ranks ("flat"), or connects hosts while another backend works within each host ("hierarchical").

    def _host_route(self, listed: Sequence[Usable], source: str, embedded: Sequence[Usable]) -> HostRoute:
        """The route over the backends ``listed``, in order of preference; if the list is empty, over ``embedded``.

        HOROVOD_HIERARCHICAL_* decides whether an operation is hierarchical. Without it, it is if no backend was named, or
        if the list names a backend that works within a host before a backend that reaches across hosts.
        """
        names = list(listed or embedded)
        first = names[0]
        if not self.several_hosts:
            return HostRoute(None, first, source) if first.spans_hosts else HostRoute(first, None, source)
        between = next((b for b in names if b.spans_hosts), None)
        if between is None and listed:
            # The reason why a backend is kept within hosts tells more than the nature of another one.
            refused = next((b for b in names if b.kept_within), first)
            raise self._one_host_only(refused, source, alone=len(names) == 1)
        if between is None:
            raise BackendUnavailable(
                f"horovod: backend selection: {self._spread()}, and no backend that may be used reaches across hosts.\n"
                f"  installed: {self.backends.describe_installed()}\n"
                "  fix: run all ranks on one host, or install a backend that works between hosts\n"
                "  list: hvd plugin list"
            )
        # The order of the list, or of the automatic choice, decides whether there are two levels.
        before = names[: names.index(between)]
        within = next((b for b in before if not b.spans_hosts and not self._leaves_ranks_out(b)), None)
        two_levels = within is not None
        within = within or next((b for b in embedded if not b.spans_hosts), None)
        variables = {"allreduce": self.allreduce, "reduce": self.allreduce, "allgather": self.allgather}
        hierarchical = tuple(
            name for name in COLLECTIVES if (two_levels if variables.get(name) is None else variables[name])
        )
        # With two levels, a rank whose local rank exceeds the smallest host's size takes no part between hosts. It would
        # never start the launcher's library, which starts on all ranks together.
        excludes_ranks = bool(between.launchers) and not homogeneous(self.world)
        if within is None or within.name == between.name or not hierarchical or excludes_ranks:
            return HostRoute(None, between, source)
        return HostRoute(within, between, source, hierarchical, within_alone=two_levels)

    def _leaves_ranks_out(self, backend: Usable) -> bool:
        """Whether some ranks, those that are alone on their host, would never start the launcher's library that
        ``backend`` needs. It starts on all ranks together, or waits indefinitely."""
        return bool(backend.launchers) and 1 in Counter(self.world.hosts).values()

    def _with_launcher_backends(self, embedded: list[Usable]) -> list[Usable]:
        """``embedded``, with the backends that belong to the jobs of this job's launcher in front of the embedded backend
        that reaches across hosts. On one host, or after Slurm's process manager was used up, they are not searched."""
        if not self.several_hosts or self.world.launcher_used_up:
            return embedded
        found = self.backends.of_launcher(self.world.launcher)
        of_launcher = [b for b in found if HOST in b.serves and b.spans_hosts]
        within = [b for b in embedded if not b.spans_hosts]
        return [*within, *of_launcher, *(b for b in embedded if b.spans_hosts)]

    def _host_list(self) -> tuple[list[Usable], str]:
        """(the backends that were named for all of host memory, in order of preference; the source). The list may be
        empty."""
        for level, rule in self._rules(HOST, None):
            found = [b for b in self._named(rule, level, HOST) if HOST in b.serves]
            if found:
                return found, rule.source
            if rule.device == HOST and not level.soft:
                raise self._does_not_serve(rule, HOST)
        return [], AUTOMATIC

    def _host_overrides(self, host_route: HostRoute) -> dict[str, Selection]:
        """The operations on host memory for which a backend of their own was named."""
        routes = {}
        for operation in OPERATIONS:
            for level, rule in self._rules(HOST, operation):
                found = [b for b in self._named(rule, level, HOST) if HOST in b.serves]
                if found and rule.operation is None:
                    break  # the same rule decides for the other operations
                if not found and rule.operation is not None and not level.soft:
                    raise self._does_not_serve(rule, HOST)
                if found:
                    routes[operation] = Selection(self._reaching(found, rule), rule.source)
                    break
        main = host_route.backends("")
        flat = len(main) == 1 and not host_route.hierarchical
        return {
            operation: chosen
            for operation, chosen in routes.items()
            if not (flat and chosen.backend.name == main[0].name) or chosen.source == OF_SET
        }

    # Device memory.

    def _routes_of(self, device: str, host: BackendPlan) -> DeviceRoutes | None:
        """``host``: a plan that has the routes of host memory."""
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
        if self.allreduce is False or not self.several_hosts or host.host_route.between is None:
            return None
        if not homogeneous(self.world) or len(set(self.world.hosts)) == len(self.world.hosts):
            return None
        if route is not None:
            return route if self.allreduce and device in route.serves else None
        if not self.open:
            return None
        within = (b for b in self.backends.for_devices(device) if device in b.serves and not b.spans_hosts)
        return next(within, None)

    def _named_types(self) -> list[str]:
        """The device types that rules name and that named backends serve."""
        types: dict[str, None] = {}
        for level in self.levels:
            for rule in level.rules:
                if rule.broad:
                    for backend in self._named(rule, level, None):
                        types |= dict.fromkeys(device_types(backend))
                elif rule.device != HOST:
                    types[str(rule.device)] = None
        return list(types)

    def _route(self, device: str, operation: str, host: BackendPlan) -> tuple[Usable | None, str]:
        """(the backend whose communicator reads the device's memory, None for staging; the source of the choice)."""
        for level, rule in self._rules(device, operation):
            found = self._named(rule, level, device)
            direct = [b for b in found if device in b.serves]
            if direct and not (level.soft and not any(map(self._reaches, direct))):
                return self._reaching(direct, rule), rule.source
            if any(b.table == device for b in found):
                return None, rule.source
            if rule.device == device:
                return self._staged_over(found, rule, operation, host), rule.source
        for backend in self.backends.for_devices(device) if self.open else ():
            if device in backend.serves:
                if self._reaches(backend):
                    return backend, AUTOMATIC
                if backend.kept_within:
                    self._warn_once(
                        f"horovod: backend '{backend.name}' {backend.kept_within}: tensors on '{device}' are copied "
                        "through host memory instead. On an encrypted network (WireGuard, IPsec) between the hosts "
                        "HOROVOD_TLS is not needed."
                    )
        return None, AUTOMATIC

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
        return self._reaching(named, rule)

    def _table(self, device: str, routes: Iterable[Usable]) -> Usable | None:
        """The backend that opens the devices: one of ``routes``, else a named one, else any installed one; or None."""
        named = (b for level in self.levels for rule in level.rules for b in self._named(rule, level, None))
        for backend in (*routes, *named):
            if backend.table == device:
                return backend
        return next((b for b in self.backends.for_devices(device) if b.table == device), None)

    def _refuse_if_named(self, device: str) -> None:
        for rule in (rule for level in self.levels if not level.soft for rule in level.rules):
            if rule.device == device:
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
        if self.open:
            return ""
        rule = next(r for level in self.levels for r in level.rules if r.device is None)
        fix = "name a backend for the device type as well"
        if rule.source == VARIABLE:
            fix += f": HOROVOD_BACKEND={','.join(rule.names)},DEVICE=NAME"
        return (
            f"{rule.source} names {', '.join(rule.names)} for everything, so no other backend was searched for; "
            f"to change that, {fix}"
        )

    # Rules, and the backends that they name.

    def _rules(self, device: str, operation: str | None) -> Iterator[tuple[Level, Rule]]:
        """The rules for an operation on a device type: level by level, and the most specific rule of a level first."""
        for level in self.levels:
            for rule in level.rules_for(device, operation):
                yield level, rule

    def _named(self, rule: Rule, level: Level, device: str | None) -> list[Usable]:
        """The usable backends of a rule, in order.

        If the rule has one name and it cannot be used, that is an error. If it has a list, the call fails only if no
        backend can be used; otherwise it warns of the unusable names before the first backend that serves ``device``."""
        found: list[Usable] = []
        failed: list[tuple[int, BackendError]] = []
        for position, name in enumerate(rule.names):
            try:
                found.append(self.backends.usable(name, rule.source, len(rule.names) == 1))
            except BackendError as error:
                failed.append((position, error))
        if level.soft:
            return self._of_older_variable(rule, found, [error for _, error in failed], device)
        if not found:
            raise failed[0][1]
        serving = [b for b in found if device is not None and (device in b.serves or b.table == device)]
        for position, fault in failed if serving else ():
            if position < rule.names.index(serving[0].name):
                self._warn_once(
                    f"horovod: {reason(fault)}. Using '{serving[0].name}', the next backend in {rule.source}."
                )
        return found

    def _of_older_variable(
        self, rule: Rule, found: list[Usable], failed: list[BackendError], device: str | None
    ) -> list[Usable]:
        """The backend that an older variable names, unless it cannot be used here: then none, and a warning, because
        images still export these variables."""
        if failed:
            why = f"{reason(failed[0])}."
            if type(failed[0]) is BackendNotInstalled:
                installed = self.backends.describe_installed()
                why = f"no backend of that name is installed. installed: {installed}."
        else:
            (backend,) = found
            launcher = self.world.launcher if self.world is not None and len(self.world.hosts) > 1 else None
            if launcher and backend.launchers and launcher not in backend.launchers:
                why = (
                    f"backend '{backend.name}' ({backend.origin}) works in jobs that are started by "
                    f"{' or '.join(backend.launchers)}, and this one was started by {launcher}."
                )
            elif rule.device == ACCELERATORS and not device_types(backend):
                why = (
                    f"the backend serves {', '.join(sorted(backend.serves)) or 'nothing'} only, no other device type. "
                    "Unset the variable, or name a backend for the device type in HOROVOD_BACKEND."
                )
            elif device == HOST and backend.kept_within and self.several_hosts:
                why = f"the backend {backend.kept_within}, and this job has several hosts."
            else:
                return found
        ignored = f"horovod: {rule.source}={rule.names[0]} is ignored: {why}"
        if rule.device == ACCELERATORS:  # BackendPlan.named_for_devices
            ignored += (
                " While the variable is set, tensors on devices that no backend serves are refused; otherwise they "
                "would be copied through host memory."
            )
        self._warn_once(ignored)
        return []

    def _warn_once(self, text: str) -> None:
        # Every rank comes to the same conclusion; rank 0 reports it.
        if text not in _warned and (self.world is None or self.world.rank == 0):
            _warned.add(text)
            _log.warning("%s", text)

    def _reaches(self, backend: Usable) -> bool:
        return backend.spans_hosts or not self.several_hosts

    def _reaching(self, found: Sequence[Usable], rule: Rule) -> Usable:
        """The first of some backends that reaches all ranks. Raises OneHostOnly."""
        reaching = next((b for b in found if self._reaches(b)), None)
        if reaching is None:
            raise self._one_host_only(found[0], rule.source, alone=len(rule.names) == 1)
        return reaching

    def _spread(self) -> str:
        """``this job spans 2 hosts (alpha, beta)``."""
        names = list(dict.fromkeys(self.world.host_names))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        return f"this job spans {len(set(self.world.hosts))} hosts ({shown})"

    def _one_host_only(self, backend: Usable, source: str, alone: bool) -> OneHostOnly:
        strict = "  Not falling back, because it was named explicitly.\n" if alone else ""
        return OneHostOnly(
            f"horovod: backend '{backend.name}' (from {source}) {backend.kept_within or 'works within one host'}, "
            f"and {self._spread()}.\n"
            f"{strict}  fix: name one that reaches across hosts, tcp for instance, or run all ranks on one host\n"
            f"  installed: {self.backends.describe_installed()}"
        )

    def _does_not_serve(self, rule: Rule, device: str) -> BackendError:
        backend = self._named(rule, Level("", (rule,)), None)[0]
        serves = ", ".join(sorted(backend.serves | {backend.table or HOST} - {HOST})) or "nothing"
        what = "host memory (cpu)" if device == HOST else f"memory of '{device}'"
        return BackendError(
            f"horovod: backend '{backend.name}' (from {rule.source}) does not serve {what}; it serves: {serves}.\n"
            "  Not falling back, because it was named for that explicitly.\n"
            f"  fix: name another backend for {device}, or leave {device} out      show: hvd plugin show {backend.name}"
        )
