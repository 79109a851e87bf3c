"""The rules of the channel, written a second time on purpose, as data and independently of the
fold.

Nothing here imports `channel`: an audit that asks the fold whether the fold is right proves
nothing.
"""
