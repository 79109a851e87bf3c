"""Simulate many agents on one log, deterministically from one seed.

The simulation is pure except for the `random.Random` of the seed. Only `__main__` uses a terminal.
"""
