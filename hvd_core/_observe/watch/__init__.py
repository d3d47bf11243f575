"""The watcher: a process of its own that reads the flight recorders of a host's ranks while the job runs.

It serves the live timeline (docs/timeline.md) and the metrics (docs/metrics.md). It maps the ranks' memory read-only, so
that the ranks do nothing for it, and it outlives them.
"""
