"""The checkers: the invariants of the protocol, each asked after every step of every broker and every record of the log.

Here live one module per matter, and `panel`, which calls them. A checker knows the truth of the simulated world (true time,
who runs where, every clock), and as little as possible of how a broker decides.
"""
