"""Keep the history of a channel as tables."""
