"""The page about a cluster that every broker serves."""
