"""Compact a channel into its snapshot, and export, import or copy channels.

`channel.core.view.apply` is the only fold, here as everywhere.
"""
