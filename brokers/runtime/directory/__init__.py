"""The data directory of a broker, and the snapshots in it."""
