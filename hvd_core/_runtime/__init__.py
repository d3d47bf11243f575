"""The runtime of a process: init() and shutdown(), the state of its job, process sets, logs and crash reports."""
