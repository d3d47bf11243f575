"""Backends written in Python: the classes to derive from (``backend``), their options, and the calls into them.

Imports NumPy, so the modules of discovery and selection import this folder only when such a backend is used.
"""
