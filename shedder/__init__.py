"""What to move: an immutable snapshot of the load comes in, a plan of moves goes out.

Pure: no IO, no clock, no randomness; ties break by name, so that equal snapshots give equal plans.
"""
