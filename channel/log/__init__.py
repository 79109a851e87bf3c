"""Open a log, follow it in a thread, and fold it into views."""
