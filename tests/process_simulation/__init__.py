"""The whole process simulated: the real shell of instances and workers on an event loop of virtual time.

One rule: everything that happens in a life follows from its plan, and the plan from its seed. `python -m
tests.process_simulation --seeds N` runs lives; the module `life` says what one consists of.
"""
