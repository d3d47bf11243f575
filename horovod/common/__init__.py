"""What the framework faces of Horovod share: basics, process sets, exceptions. Knows no framework."""
