"""Compacted snapshots beside a log: rows, restoring, and the oldest retained snapshot."""
