"""Compacted snapshots beside a log: rows, restoring, and the history snapshot."""
