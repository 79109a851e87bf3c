"""The log: who owns which bundle, as a pure state machine over a totally ordered log.

Here live the records and their codec, the one fold, the proposals, the digest and the snapshot of a
view, and the `Log` port with its adapters. Nothing in here knows what a broker process is.
"""
