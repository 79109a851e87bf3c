"""A broker inside a user's program: its loop or thread, its calls by key, its HTTP, its signals."""
