"""A broker's data directory and the snapshots in it."""
