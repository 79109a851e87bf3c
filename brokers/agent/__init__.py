"""The broker as a pure state machine: `step(event, now) -> effects`.

Here live membership, ownership, leading and deadlines. No IO, no clock, no randomness: time comes in as an argument, and
what is to be done goes out as effects.
"""
