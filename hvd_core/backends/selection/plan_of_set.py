"""The plan of a process set with backends of its own: those that the set names, and for everything else the job's."""

from __future__ import annotations

from dataclasses import replace

from hvd_core.backends.errors import BackendUnavailable
from hvd_core.backends.selection.backend_plan import BackendPlan, DeviceRoutes


def with_own(job: BackendPlan, own: BackendPlan, source: str) -> BackendPlan:
    """``job`` with the parts of ``own`` that come from ``source``.

    Raises BackendUnavailable for a device type that is named there, and whose devices the job does not open.
    """
    on_host = {o: s for o, s in own.host_overrides.items() if s.source == source}
    if own.host_route.source == source:
        host_route = own.host_route
    else:
        host_route, on_host = job.host_route, {**job.host_overrides, **on_host}
    named = {d.type: d for d in own.devices if source in d.sources.values()}
    for missing in named.keys() - {d.type for d in job.devices}:
        raise BackendUnavailable(
            f"horovod: {source} names a backend for device type '{missing}', and this job opens no devices of that "
            "type.\n  fix: name the backend for the whole job as well, with init(backend=...) or HOROVOD_BACKEND"
        )
    devices = tuple(_routes(d, named[d.type], source) if d.type in named else d for d in job.devices)
    return replace(job, host_route=host_route, host_overrides=on_host, devices=devices)


def _routes(job: DeviceRoutes, own: DeviceRoutes, source: str) -> DeviceRoutes:
    mine = [operation for operation, by in own.sources.items() if by == source]
    routes = {o: r for o, r in job.routes.items() if o not in mine}
    routes |= {o: own.routes[o] for o in mine if o in own.routes}
    within = own.within if "allreduce" in mine else job.within
    return replace(job, routes=routes, sources={**job.sources, **dict.fromkeys(mine, source)}, within=within)
