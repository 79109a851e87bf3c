"""The rules of the channel, written a second time on purpose, as data and by other hands than the fold's.

Nothing here imports `channel`: an audit that asks the fold whether the fold is right proves nothing.
"""
