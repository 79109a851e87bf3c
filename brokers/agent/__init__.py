"""The broker as a pure state machine: `step(event, now) -> effects`.

No I/O, no clock, no randomness: time is an argument, and actions are returned as effects.
"""
