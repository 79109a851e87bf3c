"""Plan which bundles to move: an immutable snapshot of the load comes in, a plan of moves goes out.

Pure: no IO, no clock, no randomness. Ties break by name, so equal snapshots give equal plans.
"""
