"""Many agents, one log, one seed: the world that agents live in, made deterministic.

Here live the scheduler, the clocks, the faulty log, the faults as data and the checkers of the invariants. Pure, but for
the `random.Random` that the seed makes; only `__main__` speaks to a terminal.
"""
