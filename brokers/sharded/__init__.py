"""Services that most programs need, on the port that any program may use: state by key, and tasks
by shard.
"""
