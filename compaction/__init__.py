"""Compact a channel into its snapshot, and copy channels.

`channel.core.view.apply` is the only fold, here as everywhere.
"""
