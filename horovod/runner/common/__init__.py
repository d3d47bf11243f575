"""Modules of the original's launcher that programs import, as thin covers of ours. README.md lists names and programs."""
