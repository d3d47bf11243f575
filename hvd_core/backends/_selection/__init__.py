"""Which backend serves each operation on each device type in this job, and whether all ranks chose alike.

| module | holds |
|---|---|
| job | the order of the steps in ``init()`` |
| choice | ``choose()``: applies the rules of the argument, the variables and the files to the usable backends |
| usable | takes a backend through find, describe, probe and load when a rule asks for it, one that no rule names in a
process of its own first |
| options | options from plugins.toml as variables; checks the options of the chosen backends |
| plan | ``BackendPlan``, the result, for the engine and for people; the report |
| agreement | compares the choices of all ranks |
"""
