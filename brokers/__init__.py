"""Who serves: the broker, its pure state machine, the host that drives it, and its ways in (HTTP, command line)."""
