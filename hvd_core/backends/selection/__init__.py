"""Which backend serves each operation on each device type in this job, and whether all ranks chose alike.

| module | holds |
|---|---|
| choice | ``choose()``: applies the rules of the argument, the variables and the files to the usable backends |
| usable_backends | takes a backend through find, describe, probe and load when a rule asks for it |
| trial, trial_process | tries a backend that no rule names in a process of its own |
| host_route | whether host memory uses one backend, or one within hosts and one between them |
| backend_options | options from plugins.toml as variables; checks the options of the chosen backends |
| backend_plan | ``BackendPlan``: the result, for the engine and for people |
| backend_report | the result as a table |
| agreement, agreed_variables | compares the choices of all ranks |
| at_init | the order of these steps in ``init()`` |
"""
