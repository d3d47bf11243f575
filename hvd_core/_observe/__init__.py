"""What the engine's observer records, read in Python: rings of the flight recorder, and timeline files.

The engine writes both (hvd_core/engine/recorder). The modules here need no engine, no job and nothing compiled, so that a
file can be read on another machine.
"""
