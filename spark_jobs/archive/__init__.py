"""The archive: keep the history of a channel as tables."""
