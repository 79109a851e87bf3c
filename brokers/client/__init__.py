"""Clients: who serves a key, from a local table that a stream keeps fresh.

Here live the client, its table, and the two sources of that table: the log itself, or any broker's HTTP.
"""
