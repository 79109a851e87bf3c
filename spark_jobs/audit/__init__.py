"""The audit: check a channel against the rules while it grows."""
