"""Which seed notices which removed rule: found by `python -m tests.simulation.find`, kept so that the test is quick."""

CAUGHT_BY: dict[str, int] = {}
