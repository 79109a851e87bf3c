"""A SHORTER LOG, THE SAME VIEW: the compaction of a channel into its snapshot, and channels carried elsewhere.

May live here: this docstring. The fold is `channel.core.view.apply`, here as everywhere.
"""
