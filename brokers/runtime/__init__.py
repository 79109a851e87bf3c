"""A running broker: the worker, its service, its clocks and its data directory."""
