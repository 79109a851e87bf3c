"""Check the invariants of the protocol after every step of every broker and every record of the
log.

A checker knows the truth of the simulated world: true time, every clock, and which process runs
where. It uses as little as possible of the code with which a broker decides. `all_checkers` calls
all checkers.
"""
