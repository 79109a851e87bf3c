"""Find the broker that serves a key, in a local table that a stream keeps up to date."""
