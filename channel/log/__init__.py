"""Opening a log, following it in a thread, and the views that follow it."""
